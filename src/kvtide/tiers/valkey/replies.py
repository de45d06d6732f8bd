"""Reads replies off a socket, values straight into the memory they are meant for.

The client's own parsers build a `bytes` of each value, which is then copied: two copies more than this, and half of
the processor time of a get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from valkey.exceptions import InvalidResponse, ResponseError

from kvtide.tiers.valkey.incoming import Incoming

Reply = bytes | int | None | ResponseError | list[Any]
"""A reply as it came. Errors are values here: one of them need not spoil its neighbours in a batch."""


class Value(NamedTuple):
    """A value that was read into memory."""

    head: memoryview
    length: int
    """Its own, which need not be that of the memory."""


class Array(NamedTuple):
    """An array that was read: values in memory, and what came behind them."""

    values: Sequence[Value | ResponseError | None]
    others: Sequence[Reply]


class Replies:
    """A parser for the client's connections, its `parser_class`.

    A socket that was given up with replies still on their way is never read again: `Link` closes it.
    """

    def __init__(self, socket_read_size: int) -> None:
        self._incoming = Incoming()

    def must_end_by(self, until_s: float) -> None:
        """Say when the replies awaited now must be complete, whatever trickles in."""
        self._incoming.until_s = until_s

    # ------------------------------------------------------------------ what a connection asks of its parser

    def on_connect(self, connection: Any) -> None:
        """Begin with an empty buffer: nothing of a former socket may be taken for a reply of this one."""
        self._incoming.begin(connection._sock)  # as the client's own parsers do

    def on_disconnect(self) -> None:
        """Forget the socket and what came of it."""
        self._incoming.begin(None)

    def can_read(self, timeout: float) -> bool:
        """Say whether bytes are here that nobody asked for."""
        return self._incoming.held > 0

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
        good = self._incoming.read_expected([*pieces, memoryview(bytearray(len(end)))], [*beginnings, end])
        came = good // 2
        is_all = good > len(pieces)
        if came and not is_all:
            self._skip_line_end()
        heads = (piece[-head_bytes:] for piece in pieces[: 2 * came : 2])
        return [Value(head, head_bytes + len(body)) for head, body in zip(heads, bodies, strict=False)], is_all

    def _array_head(self) -> int | ResponseError:
        line = self._incoming.line()
        if line[:1] == b"*":
            return int(line[1:])
        if line[:1] == b"-":
            return _error(line)
        raise InvalidResponse(f"an array was expected, and {line[:32]!r} came")

    def _read_value(self, head_bytes: int, body: memoryview) -> Value | ResponseError | None:
        line = self._incoming.line()
        if line[:1] == b"-":
            return _error(line)
        if line[:1] != b"$":
            raise InvalidResponse(f"a value was expected, and {line[:32]!r} came")
        length = int(line[1:])
        if length < 0:
            return None
        head = memoryview(bytearray(min(length, head_bytes)))
        self._incoming.read_exactly(head)
        if length == head_bytes + len(body):
            self._incoming.read_exactly(body)
        else:
            self._incoming.skip(length - len(head))
        self._skip_line_end()
        return Value(head, length)

    # ------------------------------------------------------------------ replies of any kind

    def _reply(self) -> Reply:
        line = self._incoming.line()
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
        self._incoming.read_exactly(memoryview(value))
        self._skip_line_end()
        return bytes(value)

    def _skip_line_end(self) -> None:
        if self._incoming.line():
            raise InvalidResponse("a value is longer than it said")


def _error(line: bytes) -> ResponseError:
    return ResponseError(line[1:].decode("utf-8", errors="replace"))
