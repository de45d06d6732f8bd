"""Calls and replies as bytes: what is sent is what is read, and what makes no sense is refused."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kvtide.core.chain import Chain
from kvtide.core.index.calls import (
    OFFERS_MAX,
    Again,
    Call,
    Cut,
    Drop,
    Found,
    LookUp,
    Offer,
    Ready,
    Release,
    Reply,
    Reserve,
    Reserved,
    Run,
    Settle,
    Taken,
    Unkept,
)
from kvtide.core.match import Piece
from kvtide.core.reasons import NotLoaded, NotStored
from kvtide.node.codec import Kind, call_frame, read_call, read_reply, reply_frame
from kvtide.node.errors import BadFrame
from kvtide.node.frames import BODY_BYTES_MAX, Frame
from kvtide.node.packed import KEYS_MAX, Keys

IDS = some.integers(0, (1 << 64) - 1)
TOKENS = some.integers(0, (1 << 63) - 1)
NUMBERS = some.integers(0, (1 << 31) - 1)
KEYS = some.lists(some.binary(min_size=32, max_size=32), max_size=5)
KEY = some.binary(min_size=1, max_size=255)
SLOTS = some.lists(NUMBERS, max_size=5)
GROUP = some.integers(0, 255)


def counted(reasons: Any) -> some.SearchStrategy[Any]:
    return some.dictionaries(some.sampled_from(list(reasons)), some.integers(1, 1 << 40))


OFFERS = some.builds(
    Offer,
    group=GROUP,
    keys=KEYS,
    parent=some.none() | KEY,
    end_tokens=TOKENS,
    gone=SLOTS,
    needs_prefix=some.booleans(),
    touch=some.booleans(),
)
LOOK_UPS = some.builds(
    LookUp,
    id=IDS,
    keys=some.lists(KEYS, max_size=3),
    device_tokens=TOKENS,
    num_tokens=TOKENS,
    firsts=some.just(()),
    computed_tokens=NUMBERS,
    computed_s=some.floats(0, 3600),
)
CALLS: some.SearchStrategy[Call] = some.one_of(
    LOOK_UPS,
    some.builds(Again, id=IDS),
    some.builds(Drop, id=IDS),
    some.builds(Release, lease=IDS, used=some.booleans()),
    some.builds(Reserve, id=IDS, offers=some.lists(OFFERS, max_size=3), room_blocks=NUMBERS),
    some.builds(Settle, runs=some.lists(IDS, max_size=5), kept=some.booleans()),
    some.builds(Cut, run=IDS, keep_blocks=NUMBERS),
    some.builds(Ready, slots=NUMBERS),
)
PIECES = some.lists(some.builds(Piece, group=GROUP, first_block=NUMBERS, slots=SLOTS), max_size=3)
TAKEN = some.builds(
    Taken,
    runs=some.lists(some.builds(Run, id=IDS, first=NUMBERS, slots=SLOTS), max_size=3),
    left=some.lists(some.tuples(NUMBERS, NUMBERS), max_size=3),
    refused=counted(NotStored),
    gone=SLOTS,
    reached=NUMBERS,
)
REPLIES: some.SearchStrategy[Reply] = some.one_of(
    some.builds(
        Found,
        id=IDS,
        tokens=TOKENS,
        pieces=PIECES.map(tuple),
        missed=counted(NotLoaded),
        lease=some.none() | some.integers(1, (1 << 64) - 1),
        waits=some.booleans(),
    ),
    some.builds(Reserved, id=IDS, taken=some.lists(TAKEN, max_size=3)),
    some.builds(Unkept, some.builds(Chain, group=GROUP, keys=KEYS, parent=some.none() | KEY, end_tokens=TOKENS)),
)


def plain(said: Any) -> Any:
    """With keys as lists, whatever they came in, and where they begin."""
    if isinstance(said, LookUp):
        firsts = list(said.firsts) or [0] * len(said.keys)
        return replace(said, keys=[list(keys) for keys in said.keys], firsts=firsts)
    if isinstance(said, Reserve):
        return replace(said, offers=[replace(offer, keys=list(offer.keys)) for offer in said.offers])
    return said


@given(call=CALLS)
def test_calls_are_read_as_they_were_sent(call: Call) -> None:
    assert plain(read_call(call_frame(call))) == plain(call)


@given(reply=REPLIES)
def test_replies_are_read_as_they_were_sent(reply: Reply) -> None:
    assert read_reply(reply_frame(reply)) == reply


def test_a_reservation_may_be_about_hundreds_of_short_chains() -> None:
    offer = Offer(0, [b"k" * 32], None, 16, [], needs_prefix=False, touch=False)
    call = Reserve(1, [offer] * 1000, 1000)
    assert plain(read_call(call_frame(call))) == call


def test_keys_that_nobody_looks_at_are_not_sent() -> None:
    keys = [bytes([number]) * 32 for number in range(100)]
    frame = call_frame(LookUp(1, [keys], 90 * 16, 1600, [90]))
    assert len(frame.body) < 11 * 32 + 64
    read = read_call(frame)
    assert isinstance(read, LookUp)
    (there,) = read.keys
    assert len(there) == 100
    assert list(there[90:]) == keys[90:]
    assert there[95] == keys[95]
    assert [there[0], there[89], *there[88:92]] == [b"", b"", b"", b"", *keys[90:92]], "what is left out is nobody's"
    assert (list(there[10:12]), len(there[80:95][5:]), list(there[80:95][12:])) == ([b"", b""], 10, keys[92:95])
    assert list(there[95:97]) == keys[95:97]


@pytest.mark.parametrize("seconds", [-1.0, 3601.0, float("inf"), float("nan")])
def test_a_step_that_took_no_time_that_there_is_makes_no_sense(seconds: float) -> None:
    frame = call_frame(LookUp(1, [], 0, 1, computed_tokens=5, computed_s=2.0))
    before, after = struct.pack("<d", 2.0), struct.pack("<d", seconds)
    assert frame.body.count(before) == 1
    with pytest.raises(BadFrame, match="a step that took"):
        read_call(Frame(frame.kind, frame.body.replace(before, after)))


def test_a_step_that_took_longer_than_an_hour_is_told_as_an_hour() -> None:
    told = read_call(call_frame(LookUp(1, [], 0, 1, computed_tokens=1 << 40, computed_s=1e9)))
    assert isinstance(told, LookUp)
    assert (told.computed_tokens, told.computed_s) == ((1 << 32) - 1, 3600.0)


@given(frame=some.builds(Frame, kind=some.sampled_from(Kind), body=some.binary(max_size=80)))
def test_garbage_is_refused_and_nothing_else_happens(frame: Frame) -> None:
    with contextlib.suppress(BadFrame):
        plain(read_call(frame))
    with contextlib.suppress(BadFrame):
        read_reply(frame)


@given(call=CALLS, cut=some.integers(1, 20))
def test_half_a_call_is_refused(call: Call, cut: int) -> None:
    frame = call_frame(call)
    with pytest.raises(BadFrame):
        read_call(Frame(frame.kind, frame.body[:-cut]))


@pytest.mark.parametrize("parent", [None, b"p" * 32], ids=["keys", "parent"])
def test_only_a_look_up_leaves_keys_out(parent: bytes | None) -> None:
    offer = Offer(0, [b"k" * 32], parent, 16, [], needs_prefix=False, touch=True)
    frame = call_frame(Reserve(1, [offer], 1))
    one = struct.pack("<IIB", 0, 1, 32)
    changed = frame.body.replace(one, struct.pack("<IIB", 1 << 30, 1, 32), 1)
    assert changed != frame.body
    with pytest.raises(BadFrame, match="1073741824 keys that are left out"):
        read_call(Frame(frame.kind, changed))


def test_a_frame_of_short_keys_has_no_more_than_one_of_usual_ones() -> None:
    assert BODY_BYTES_MAX // 32 <= KEYS_MAX
    most = [bytes(2)] * KEYS_MAX
    assert plain(read_call(call_frame(LookUp(1, [most], 0, 1))))
    with pytest.raises(BadFrame, match="more than 524288 keys"):
        read_call(call_frame(LookUp(1, [most, [b"k"]], 0, 1)))


def test_a_reservation_is_about_so_many_chains_at_most() -> None:
    offer = Offer(0, [], None, 16, [], needs_prefix=False, touch=False)
    assert read_call(call_frame(Reserve(1, [offer] * OFFERS_MAX, 1)))
    with pytest.raises(BadFrame, match="65537 groups or chains, and 65536 are the most"):
        read_call(call_frame(Reserve(1, [offer] * (OFFERS_MAX + 1), 1)))


@given(call=CALLS)
def test_more_than_a_call_is_refused(call: Call) -> None:
    frame = call_frame(call)
    with pytest.raises(BadFrame):
        read_call(Frame(frame.kind, frame.body + b"\0"))


def test_keys_in_one_piece_are_a_sequence() -> None:
    keys = Keys(b"-aabbcc", 1, 2, 3)
    assert (list(keys), keys[-1], len(keys[1:]), list(keys[1:]), list(keys[3:])) == (
        [b"aa", b"bb", b"cc"],
        b"cc",
        2,
        [b"bb", b"cc"],
        [],
    )
    with pytest.raises(IndexError):
        keys[3]


def test_keys_that_are_looked_at_one_by_one_are_those_that_are_read_in_one_go() -> None:
    data = bytes(range(200))
    keys = Keys(data, 0, 2, 100, first=3)
    assert [keys[at] for at in range(103)] == [b"", b"", b"", *(data[at : at + 2] for at in range(0, 200, 2))]
    assert list(keys) == [keys[at] for at in range(-103, 0)]
    assert keys[50:][1] == keys[51]


def test_keys_that_are_left_out_take_no_memory_though_all_others_are_looked_at() -> None:
    tracemalloc.start()
    keys = Keys(bytes(2000), 0, 2, 1000, first=1 << 30)
    assert all(keys[(1 << 30) + at] for at in range(1000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
