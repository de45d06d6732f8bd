"""Replies are read whole, however the bytes arrive, and values land in the memory they are meant for."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from valkey.exceptions import ConnectionError as ServerGone
from valkey.exceptions import InvalidResponse, ResponseError

from kvtide.tiers.record import Sealed
from kvtide.tiers.valkey.replies import Replies
from kvtide.tiers.valkey.wire import send_commands


class Trickle:
    """A socket that gives as many bytes at a time as it is told."""

    def __init__(self, data: bytes, steps: list[int]) -> None:
        self._data, self._steps = data, steps

    def recv_into(self, into: memoryview) -> int:
        count = min(len(into), self._steps.pop(0) if self._steps else 1 << 30, len(self._data))
        into[:count] = self._data[:count]
        self._data = self._data[count:]
        return count


def reading(data: bytes, steps: list[int] | None = None) -> Replies:
    replies = Replies(socket_read_size=0)
    replies.on_connect(SimpleNamespace(_sock=Trickle(data, list(steps or []))))
    return replies


def encoded(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))
    return b"$%d\r\n%b\r\n" % (len(reply), reply)


SIMPLE = st.one_of(st.none(), st.integers(-(2**62), 2**62), st.binary(max_size=40_000), st.just(b"\r\n"))
REPLIES = st.recursive(SIMPLE, lambda each: st.lists(each, max_size=4), max_leaves=6)
STEPS = st.lists(st.integers(1, 20_000), max_size=50)


@settings(deadline=None)
@given(sent=st.lists(REPLIES, max_size=6), steps=STEPS)
def test_replies_come_out_as_they_went_in_however_they_are_cut(sent: list[Any], steps: list[int]) -> None:
    replies = reading(b"".join(map(encoded, sent)), steps)
    assert [replies.read_response() for _ in sent] == sent


@settings(deadline=None)
@given(
    values=st.lists(st.one_of(st.none(), st.binary(max_size=30_000)), min_size=1, max_size=5),
    head=st.integers(1, 200),
    body=st.integers(0, 30_000),
    steps=STEPS,
)
def test_values_land_in_place_and_others_are_passed_over(
    values: list[bytes | None], head: int, body: int, steps: list[int]
) -> None:
    values.append(bytes(range(256)) * ((head + body) // 256 + 1))
    values[-1] = (values[-1] or b"")[: head + body]
    replies = reading(b"".join(map(encoded, values)) + b"+OK\r\n", steps)
    for value in values:
        room = memoryview(bytearray(b"\xaa" * (head + body + 8)))
        length = replies.read_into(room[:head], room[head : head + body])
        assert length == (None if value is None else len(value))
        assert set(room[head + body :]) == {0xAA}
        if value is not None and length == head + body:
            assert room[: head + body] == value
    assert replies.read_response() == b"OK"


def test_errors_are_values() -> None:
    replies = reading(b"-OOM no room\r\n-WRONGTYPE other\r\n-ERR x\r\n")
    room = memoryview(bytearray(4))
    for found in (replies.read_response(), replies.read_into(room, room), replies.read_array_head()):
        assert isinstance(found, ResponseError)


@pytest.mark.parametrize("data", [b"what\r\n", b"$3\r\nabcde\r\n", b"x" * 8000, b"$x\r\n", b":x\r\n", b"*y\r\n"])
def test_nonsense_is_not_taken_for_a_reply(data: bytes) -> None:
    with pytest.raises((InvalidResponse, ValueError)):
        reading(data).read_response()


@pytest.mark.parametrize("data", [b"", b"$10\r\nabc", b"*2\r\n:1\r\n", b"+O"])
def test_a_connection_that_ends_early_is_an_error(data: bytes) -> None:
    with pytest.raises(ServerGone):
        reading(data).read_response()


def test_a_trickle_that_takes_too_long_is_a_time_out() -> None:
    replies = reading(b"$1000\r\n" + bytes(1000), [1] * 2000)
    replies.until_s = 0.0
    with pytest.raises(TimeoutError):
        replies.read_response()


def test_a_new_connection_begins_with_nothing() -> None:
    replies = reading(b"+OK\r\n+left over\r\n")
    assert replies.read_response() == b"OK"
    replies.on_disconnect()
    replies.on_connect(SimpleNamespace(_sock=Trickle(b"+new\r\n", [])))
    assert replies.read_response() == b"new"


def as_record(word: bytes) -> Sealed:
    return Sealed(word[:8], memoryview(word)[8:])


WORDS = st.one_of(st.binary(max_size=50), st.binary(min_size=1, max_size=300_000))


@settings(deadline=None)
@given(st.lists(st.lists(WORDS, min_size=1, max_size=6), max_size=4))
def test_commands_arrive_as_they_were_sent(commands: list[list[bytes]]) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(10)
        there.settimeout(10)
        packed = [[as_record(word) if len(word) > 50 else word for word in each] for each in commands]
        sender = threading.Thread(target=send_commands, args=(here, packed))
        sender.start()
        replies = Replies(socket_read_size=0)
        replies.on_connect(SimpleNamespace(_sock=there))
        assert [replies.read_response() for _ in commands] == commands
        sender.join()
