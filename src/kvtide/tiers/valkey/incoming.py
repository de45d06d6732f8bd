"""Bytes as they come off a socket: lines, and memory filled in as few system calls as can be."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence

from valkey.exceptions import ConnectionError as ServerGone
from valkey.exceptions import InvalidResponse

from kvtide.tiers.valkey.wire import PIECES_MAX

_SCRATCH_BYTES = 16 << 10
"""Room for lines, small replies, and the beginnings of values."""
_LINE_BYTES_MAX = 4 << 10


class Incoming:
    """What a socket receives. `until_s` is when it must be complete, whatever trickles in."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._begin = self._end = 0
        self.until_s = float("inf")

    def begin(self, sock: socket.socket | None) -> None:
        """Read from another socket, or from none. Nothing of the former one may be taken for bytes of this one."""
        self._sock = sock
        self._begin = self._end = 0
        self.until_s = float("inf")

    @property
    def held(self) -> int:
        """Bytes that came and have not been read."""
        return self._end - self._begin

    def line(self) -> bytes:
        """Read a line, without its end."""
        while True:
            held = bytes(self._scratch[self._begin : min(self._end, self._begin + _LINE_BYTES_MAX)])
            at = held.find(b"\r\n")
            if at >= 0:
                self._begin += at + 2
                return held[:at]
            if len(held) == _LINE_BYTES_MAX:
                raise InvalidResponse("a line without an end")
            self._fill()

    def read_exactly(self, into: memoryview) -> None:
        """Fill memory."""
        held = self._take([into])
        while held < len(into):
            held += self._receive([into[held:]])

    def read_expected(self, pieces: Sequence[memoryview], beginnings: Sequence[bytes]) -> int:
        """Fill pieces of memory in turn and return how many, up to one that does not begin as it should.

        That one, and what came behind it, is kept to be read in another way. No piece is empty.
        """
        at = inside = 0  # the piece that is being filled, and how much of it is
        while at < len(pieces):
            room = [pieces[at][inside:], *pieces[at + 1 : at + PIECES_MAX]]
            inside += self._take(room) or self._receive(room)
            while inside:
                piece, beginning = pieces[at], beginnings[at]
                if piece[: min(inside, len(beginning))] != beginning[:inside]:
                    self._give_back(pieces[at:], inside)
                    return at
                if inside < len(piece):
                    break
                inside -= len(piece)
                at += 1
        return at

    def skip(self, count: int) -> None:
        """Pass over bytes."""
        while count:
            if not self.held:
                self._fill()
            passed = min(count, self.held)
            self._begin += passed
            count -= passed

    def _fill(self) -> None:
        """Receive at least one byte more into the scratch buffer, behind what it holds, which is little."""
        held = bytes(self._scratch[self._begin : self._end])
        if len(self._scratch) > _SCRATCH_BYTES:  # it grew to take bytes back, and they have been read
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._scratch[: len(held)] = held
        self._begin, self._end = 0, len(held)
        self._end += self._receive([self._scratch[self._end :]])

    def _take(self, room: Sequence[memoryview]) -> int:
        """Move what the scratch buffer holds into pieces of memory, as far as it fits; say how much."""
        taken = 0
        for piece in room if self.held else ():
            step = min(len(piece), self.held)
            piece[:step] = self._scratch[self._begin : self._begin + step]
            self._begin += step
            taken += step
        return taken

    def _give_back(self, pieces: Sequence[memoryview], count: int) -> None:
        """Hold the first bytes of pieces of memory as if they had just come, before what is held already."""
        held = bytearray()
        for piece in pieces:
            held += piece[: count - len(held)]
        held += self._scratch[self._begin : self._end]
        self._scratch = memoryview(held + bytes(_SCRATCH_BYTES))
        self._begin, self._end = 0, len(held)

    def _receive(self, room: Sequence[memoryview]) -> int:
        """Receive into pieces of memory, in turn, at least one byte; say how many."""
        if self._sock is None:
            raise ServerGone("not connected")
        if time.monotonic() > self.until_s:
            raise TimeoutError("the replies were not complete in time")
        if len(room) == 1 or isinstance(self._sock, ssl.SSLSocket):  # which takes one piece at a time
            count = self._sock.recv_into(room[0])
        else:
            count = self._sock.recvmsg_into(room)[0]
        if not count:
            raise ServerGone("the server closed the connection")
        return count
