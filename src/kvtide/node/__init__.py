"""`kvtide node`: one process that keeps the host pool of a machine, for all engines on it and beyond their lives.

Engines talk to it over a Unix socket and map its memory, which it hands them as descriptors. Begin reading at
`server.py`, and at `link.py` for the other side.
"""
