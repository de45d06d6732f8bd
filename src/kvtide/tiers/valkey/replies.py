"""Reads replies off a socket, values straight into the memory they are meant for.

The client's own parsers build a `bytes` of each value, which is then copied: two copies more than this, and half of
the processor time of a get.
"""

from __future__ import annotations

import socket
import time
from typing import Any

from valkey.exceptions import ConnectionError as ServerGone
from valkey.exceptions import InvalidResponse, ResponseError

Reply = bytes | int | None | ResponseError | list[Any]
"""A reply as it came. Errors are values here: one of them need not spoil its neighbours in a batch."""

_SCRATCH_BYTES = 16 << 10
"""Room for lines, small replies, and the beginnings of values."""
_LINE_BYTES_MAX = 4 << 10


class Replies:
    """A parser for the client's connections, its `parser_class`.

    `until_s` is when the replies awaited now must be complete, whatever trickles in. A socket that was given up with
    replies still on their way is never read again: `Link` closes it.
    """

    def __init__(self, socket_read_size: int) -> None:
        self._sock: socket.socket | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._begin = self._end = 0
        self.until_s = float("inf")

    # ------------------------------------------------------------------ what a connection asks of its parser

    def on_connect(self, connection: Any) -> None:
        """Begin with an empty buffer: nothing of a former socket may be taken for a reply of this one."""
        self._sock = connection._sock  # as the client's own parsers do
        self._begin = self._end = 0
        self.until_s = float("inf")

    def on_disconnect(self) -> None:
        """Forget the socket and what came of it."""
        self._sock = None
        self._begin = self._end = 0

    def can_read(self, timeout: float) -> bool:
        """Say whether bytes are here that nobody asked for."""
        return self._end > self._begin

    def read_response(self, disable_decoding: bool = False) -> Reply:
        """Read one reply of any kind."""
        return self._reply()

    # ------------------------------------------------------------------ values

    def read_array_head(self) -> int | ResponseError:
        """Read the beginning of an array: how many replies follow."""
        line = self._line()
        if line[:1] == b"*":
            return int(line[1:])
        if line[:1] == b"-":
            return _error(line)
        raise InvalidResponse(f"an array was expected, and {line[:32]!r} came")

    def read_into(self, head: memoryview, body: memoryview) -> int | ResponseError | None:
        """Read a value into `head` and, behind that, `body`. Returns its length, and None if there is no value.

        A value of another length is read to its end and kept only as far as it fits into `head`.
        """
        line = self._line()
        if line[:1] == b"-":
            return _error(line)
        if line[:1] != b"$":
            raise InvalidResponse(f"a value was expected, and {line[:32]!r} came")
        length = int(line[1:])
        if length < 0:
            return None
        first = min(length, len(head))
        self._read_exactly(head[:first])
        if length == len(head) + len(body):
            self._read_exactly(body)
        else:
            self._skip(length - first)
        self._skip_line_end()
        return length

    # ------------------------------------------------------------------ bytes

    def _reply(self) -> Reply:
        line = self._line()
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
        self._read_exactly(memoryview(value))
        self._skip_line_end()
        return bytes(value)

    def _line(self) -> bytes:
        while True:
            held = bytes(self._scratch[self._begin : min(self._end, self._begin + _LINE_BYTES_MAX)])
            at = held.find(b"\r\n")
            if at >= 0:
                self._begin += at + 2
                return held[:at]
            if len(held) == _LINE_BYTES_MAX:
                raise InvalidResponse("a line without an end")
            self._fill()

    def _fill(self) -> None:
        """Receive at least one byte more into the scratch buffer, behind what it holds."""
        if self._begin:
            held = self._end - self._begin
            self._scratch[:held] = bytes(self._scratch[self._begin : self._end])
            self._begin, self._end = 0, held
        self._end += self._receive(self._scratch[self._end :])

    def _read_exactly(self, into: memoryview) -> None:
        held = min(len(into), self._end - self._begin)
        into[:held] = self._scratch[self._begin : self._begin + held]
        self._begin += held
        while held < len(into):
            held += self._receive(into[held:])

    def _skip(self, count: int) -> None:
        while count:
            if self._begin == self._end:
                self._fill()
            passed = min(count, self._end - self._begin)
            self._begin += passed
            count -= passed

    def _skip_line_end(self) -> None:
        if self._line():
            raise InvalidResponse("a value is longer than it said")

    def _receive(self, into: memoryview) -> int:
        if self._sock is None:
            raise ServerGone("not connected")
        if time.monotonic() > self.until_s:
            raise TimeoutError("the replies were not complete in time")
        count = self._sock.recv_into(into)
        if not count:
            raise ServerGone("the server closed the connection")
        return count


def _error(line: bytes) -> ResponseError:
    return ResponseError(line[1:].decode("utf-8", errors="replace"))
