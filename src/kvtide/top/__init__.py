"""`kvtide top` and `kvtide advise`: what running servers do, read from their `/metrics`."""
