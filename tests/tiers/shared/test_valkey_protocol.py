"""ReplyParser are read whole, however the bytes arrive, and values land in the memory they are meant for."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from valkey.exceptions import ConnectionError as ServerGone
from valkey.exceptions import InvalidResponse, ResponseError

from kvtide.tiers.record import Sealed
from kvtide.tiers.valkey.protocol import Array, ReplyParser, Value, send_commands


class Trickle:
    """A socket that gives as many bytes at a time as it is told."""

    def __init__(self, data: bytes, steps: list[int]) -> None:
        self._data, self._steps = data, steps

    def recv_into(self, into: memoryview) -> int:
        return self.recvmsg_into([into])[0]

    def recvmsg_into(self, pieces: list[memoryview]) -> tuple[int]:
        assert all(pieces)
        count = left = min(sum(map(len, pieces)), self._steps.pop(0) if self._steps else 1 << 30, len(self._data))
        for piece in pieces:
            step = min(left, len(piece))
            piece[:step] = self._data[:step]
            self._data = self._data[step:]
            left -= step
        return (count,)


def reading(data: bytes, steps: list[int] | None = None) -> ReplyParser:
    replies = ReplyParser(socket_read_size=0)
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


@given(sent=st.lists(REPLIES, max_size=6), steps=STEPS)
def test_replies_come_out_as_they_went_in_however_they_are_cut(sent: list[Any], steps: list[int]) -> None:
    replies = reading(b"".join(map(encoded, sent)), steps)
    assert [replies.read_response() for _ in sent] == sent


@given(
    kinds=st.lists(st.one_of(st.none(), st.just("fits"), st.binary(max_size=30_000)), min_size=1, max_size=300),
    sizes=st.tuples(st.integers(1, 200), st.integers(1, 30_000)),
    others=st.lists(st.one_of(st.none(), st.binary(max_size=20)), max_size=3),
    expected=st.sampled_from([b"", b"expected"]),
    steps=STEPS,
)
def test_values_land_in_place_and_others_are_passed_over(
    kinds: list[bytes | str | None],
    sizes: tuple[int, int],
    others: list[bytes | None],
    expected: bytes,
    steps: list[int],
) -> None:
    head, body = sizes
    fitting = (bytes(range(256)) * ((head + body) // 256 + 1))[: head + body]
    sent = [fitting if kind == "fits" else kind for kind in kinds]
    replies = reading(encoded([*sent, *others]) + b"+OK\r\n", steps)
    memory = [memoryview(bytearray(b"\xaa" * (body + 8))) for _ in sent]
    array = replies.read_array(head, [room[:body] for room in memory], [expected] * len(others))
    assert isinstance(array, Array)
    assert list(array.others) == others
    assert replies.read_response() == b"OK"
    for value, was, room in zip(array.values, sent, memory, strict=True):
        assert set(room[body:]) == {0xAA}
        if not isinstance(was, bytes):
            assert value is None
            continue
        assert isinstance(value, Value)
        assert (bytes(value.head), value.length) == (was[:head], len(was))
        if len(was) == head + body:
            assert room[:body] == was[head:]


@pytest.mark.parametrize("steps", [[], [1] * 100, [9, 4, 30]])
def test_an_array_that_is_as_expected_is_received_where_it_belongs(steps: list[int]) -> None:
    replies = reading(encoded([b"headbody", b"HEADBODY", b"x"]), steps)
    bodies = [memoryview(bytearray(4)) for _ in range(2)]
    array = replies.read_array(4, bodies, [b"x"])
    assert isinstance(array, Array)
    assert [bytes(value.head) for value in array.values if isinstance(value, Value)] == [b"head", b"HEAD"]
    assert [bytes(body) for body in bodies] == [b"body", b"BODY"]
    assert array.others == [b"x"]


def test_errors_are_values() -> None:
    replies = reading(b"-OOM no room\r\n-ERR x\r\n*2\r\n-WRONGTYPE other\r\n$1\r\nx\r\n")
    room = memoryview(bytearray(4))
    for found in (replies.read_response(), replies.read_array(4, [room], [])):
        assert isinstance(found, ResponseError)
    array = replies.read_array(4, [room], [b"x"])
    assert isinstance(array, Array)
    assert isinstance(array.values[0], ResponseError)
    assert array.others == [b"x"]


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
    replies.must_end_by(0.0)
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


@given(st.lists(st.lists(WORDS, min_size=1, max_size=6), max_size=4))
def test_commands_arrive_as_they_were_sent(commands: list[list[bytes]]) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(10)
        there.settimeout(10)
        packed = [[as_record(word) if len(word) > 50 else word for word in each] for each in commands]
        sender = threading.Thread(target=send_commands, args=(here, packed))
        sender.start()
        replies = ReplyParser(socket_read_size=0)
        replies.on_connect(SimpleNamespace(_sock=there))
        assert [replies.read_response() for _ in commands] == commands
        sender.join()


class Sips:
    """A socket that takes a byte at a time."""

    def sendmsg(self, pieces: list[bytes | memoryview]) -> int:
        assert pieces
        return 1


def test_commands_that_are_taken_too_slowly_are_given_up() -> None:
    with pytest.raises(TimeoutError, match="in time"):
        send_commands(cast("socket.socket", Sips()), [[as_record(bytes(1 << 30))]], until_s=time.monotonic() + 0.05)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"*2\r\n$8\r\nheadbodyx\r\n$8\r\nheadbody\r\n", "longer"),
        (b"*2\r\n$8\r\nheadbody\r\n$8\r\nheadbodyx\r\n", "longer"),
        (b"*1\r\n$8\r\nheadbody\r\n", "2 values were asked for, and 1 come"),
        (b"$8\r\nheadbody\r\n", "an array was expected"),
        (b"*2\r\n:8\r\n", "a value was expected"),
    ],
)
def test_an_array_that_is_none_of_ours_is_refused(data: bytes, why: str) -> None:
    bodies = [memoryview(bytearray(4)) for _ in range(2)]
    with pytest.raises(InvalidResponse, match=why):
        reading(data + bytes(64)).read_array(4, bodies, [])
