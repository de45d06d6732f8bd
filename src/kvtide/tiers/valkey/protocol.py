"""The protocol: commands as they are sent, replies as they come.

Blocks are sent from where they are, and read straight into the memory that they are meant for. The client's own parsers
build a `bytes` of each value, which is then copied: two copies more than this, and half of the processor time of a get.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from valkey.exceptions import ConnectionError as ServerGone
from valkey.exceptions import InvalidResponse, ResponseError

from kvtide.tiers.record import Sealed

Command = Sequence[bytes | Sealed]
"""A command and its arguments. A record is one argument."""

PIECES_MAX = 512
"""Pieces of memory per system call; systems take at least 1024."""
Reply = bytes | int | None | ResponseError | list[Any]
"""A reply as it came. Errors are values here: one of them need not spoil its neighbours in a batch."""
_SCRATCH_BYTES = 16 << 10
"""Room for lines, small replies, and the beginnings of values."""
_LINE_BYTES_MAX = 4 << 10


# ------------------------------------------------------------------ commands


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


# ------------------------------------------------------------------ bytes


class SocketReader:
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


# ------------------------------------------------------------------ replies


class Value(NamedTuple):
    """A value that was read into memory."""

    head: memoryview
    length: int
    """Its own, which need not be that of the memory."""


class Array(NamedTuple):
    """An array that was read: values in memory, and what came behind them."""

    values: Sequence[Value | ResponseError | None]
    others: Sequence[Reply]


class ReplyParser:
    """A parser for the client's connections, its `parser_class`.

    A socket that was given up with replies still on their way is never read again: `Connection` closes it.
    """

    def __init__(self, socket_read_size: int) -> None:
        self._reader = SocketReader()

    def must_end_by(self, until_s: float) -> None:
        """Say when the replies awaited now must be complete, whatever trickles in."""
        self._reader.until_s = until_s

    # ------------------------------------------------------------------ what a connection asks of its parser

    def on_connect(self, connection: Any) -> None:
        """Begin with an empty buffer: nothing of a former socket may be taken for a reply of this one."""
        self._reader.begin(connection._sock)  # as the client's own parsers do

    def on_disconnect(self) -> None:
        """Forget the socket and what came of it."""
        self._reader.begin(None)

    def can_read(self, timeout: float) -> bool:
        """Say whether bytes are here that nobody asked for."""
        return self._reader.held > 0

    def read_response(self, disable_decoding: bool = False) -> Reply:
        """Read one reply of any kind."""
        return self._reply()

    # ------------------------------------------------------------------ arrays of values

    def read_array(
        self, head_bytes: int, bodies: Sequence[memoryview], others: Sequence[bytes]
    ) -> Array | ResponseError:
        """Read an array of values: one for each body, then others, which are expected to be these and may not be.

        Of the former, the head is kept in memory of its own, and the rest goes into the body. Of a value that has not
        the length of both, nothing but the head is kept.
        """
        values, is_all = self._read_expected(head_bytes, bodies, others)
        if is_all:
            return Array(values, others)
        if not values:
            count = self._array_head()
            if isinstance(count, ResponseError):
                return count
            if count != len(bodies) + len(others):
                raise InvalidResponse(f"{len(bodies) + len(others)} values were asked for, and {count} come")
        more = [self._read_value(head_bytes, body) for body in bodies[len(values) :]]
        return Array([*values, *more], [self._reply() for _ in others])

    def _read_expected(
        self, head_bytes: int, bodies: Sequence[memoryview], others: Sequence[bytes]
    ) -> tuple[list[Value], bool]:
        """Read values as long as they are as expected, which is the rule; say whether the whole array was.

        Then it is known beforehand where each byte of the reply belongs, and the system can put it there.
        """
        pieces: list[memoryview] = []
        beginnings: list[bytes] = []
        before = b"*%d\r\n" % (len(bodies) + len(others))
        for body in bodies:
            beginning = b"%b$%d\r\n" % (before, head_bytes + len(body))
            pieces += memoryview(bytearray(len(beginning) + head_bytes)), body
            beginnings += beginning, b""
            before = b"\r\n"  # the end of this one
        end = before + b"".join(b"$%d\r\n%b\r\n" % (len(other), other) for other in others)
        good = self._reader.read_expected([*pieces, memoryview(bytearray(len(end)))], [*beginnings, end])
        came = good // 2
        is_all = good > len(pieces)
        if came and not is_all:
            self._skip_line_end()
        heads = (piece[-head_bytes:] for piece in pieces[: 2 * came : 2])
        return [Value(head, head_bytes + len(body)) for head, body in zip(heads, bodies, strict=False)], is_all

    def _array_head(self) -> int | ResponseError:
        line = self._reader.line()
        if line[:1] == b"*":
            return int(line[1:])
        if line[:1] == b"-":
            return _error(line)
        raise InvalidResponse(f"an array was expected, and {line[:32]!r} came")

    def _read_value(self, head_bytes: int, body: memoryview) -> Value | ResponseError | None:
        line = self._reader.line()
        if line[:1] == b"-":
            return _error(line)
        if line[:1] != b"$":
            raise InvalidResponse(f"a value was expected, and {line[:32]!r} came")
        length = int(line[1:])
        if length < 0:
            return None
        head = memoryview(bytearray(min(length, head_bytes)))
        self._reader.read_exactly(head)
        if length == head_bytes + len(body):
            self._reader.read_exactly(body)
        else:
            self._reader.skip(length - len(head))
        self._skip_line_end()
        return Value(head, length)

    # ------------------------------------------------------------------ replies of any kind

    def _reply(self) -> Reply:
        line = self._reader.line()
        kind, text = line[:1], line[1:]
        if kind == b"$":
            return self._bulk(int(text))
        if kind == b"*":
            return None if text == b"-1" else [self._reply() for _ in range(int(text))]
        if kind == b":":
            return int(text)
        if kind == b"+":
            return text
        if kind == b"-":
            return _error(line)
        raise InvalidResponse(f"no reply begins with {line[:32]!r}")

    def _bulk(self, length: int) -> bytes | None:
        if length < 0:
            return None
        value = bytearray(length)
        self._reader.read_exactly(memoryview(value))
        self._skip_line_end()
        return bytes(value)

    def _skip_line_end(self) -> None:
        if self._reader.line():
            raise InvalidResponse("a value is longer than it said")


def _error(line: bytes) -> ResponseError:
    return ResponseError(line[1:].decode("utf-8", errors="replace"))
