"""Ports for servers that tests start: free, and given to nobody else meanwhile."""

from __future__ import annotations

import itertools
import os
import socket

FIRST, LAST = 20_000, 32_000
"""Below those that systems give to whoever wants any, and to clients: one of these may be gone again when the server
that it is meant for listens, which may take a minute."""
PER_PROCESS = 100

_numbers = itertools.count(os.getpid() * PER_PROCESS)
"""Tests that run at the same time begin at different ones."""


def free_port() -> int:
    """Return a port on loopback that is free, each time another one."""
    while True:
        port = FIRST + next(_numbers) % (LAST - FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
