"""Commands as they are sent: small pieces joined, blocks sent from where they are."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence

from kvtide.tiers.record import Sealed

Command = Sequence[bytes | Sealed]
"""A command and its arguments. A record is one argument."""

PIECES_MAX = 512
"""Pieces of memory per system call; systems take at least 1024."""


def send_commands(sock: socket.socket, commands: Iterable[Command], *, until_s: float = float("inf")) -> None:
    """Send commands in as few system calls as can be. None begins after `until_s`."""
    pieces = list(_joined(commands))
    if isinstance(sock, ssl.SSLSocket):  # it copies into its own records anyway, and takes one piece at a time
        for piece in pieces:
            _check(until_s)
            sock.sendall(piece)
        return
    for first in range(0, len(pieces), PIECES_MAX):
        _send_all(sock, pieces[first : first + PIECES_MAX], until_s)


def _joined(commands: Iterable[Command]) -> Iterator[bytes | memoryview]:
    small = bytearray()
    for command in commands:
        small += b"*%d\r\n" % len(command)
        for argument in command:
            if isinstance(argument, Sealed):
                header, body = argument
                small += b"$%d\r\n%b" % (len(header) + body.nbytes, header)
                yield bytes(small)
                yield body.cast("B")
                small = bytearray(b"\r\n")
            else:
                small += b"$%d\r\n%b\r\n" % (len(argument), argument)
    yield bytes(small)


def _send_all(sock: socket.socket, pieces: list[bytes | memoryview], until_s: float) -> None:
    """Send all pieces. The socket may take any number of bytes at a time."""
    first, total = 0, sum(len(piece) for piece in pieces)
    while total:
        _check(until_s)
        sent = sock.sendmsg(pieces[first:] if first else pieces)
        total -= sent
        while first < len(pieces) and sent >= len(pieces[first]):
            sent -= len(pieces[first])
            first += 1
        if sent:
            pieces[first] = memoryview(pieces[first])[sent:]


def _check(until_s: float) -> None:
    if time.monotonic() > until_s:
        raise TimeoutError("the server did not take the commands in time")
