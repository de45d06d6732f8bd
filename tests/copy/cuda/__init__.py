"""Tests of `kvtide.copy.cuda` that need no GPU."""
