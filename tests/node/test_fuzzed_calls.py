"""Whatever engines ask for: an answer, or a refusal. The node lives, and nothing is left when they are gone."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kvtide.core import ChunkedLocal, FullAttention, Group, SlidingWindow, StateSpace
from kvtide.core.index.calls import Call, Cut, LookUp, Offer, Ready, Release, Reserve, Settle
from kvtide.node.codec import call_frame
from kvtide.node.described_groups import described
from kvtide.node.errors import BadFrame
from kvtide.node.frames import Frame
from kvtide.node.hello import Hello, Role
from kvtide.node.owners import Owner
from kvtide.node.packed import pack_keys
from kvtide.node.spaces import Spaces
from kvtide.node.tiers.node_tiers import NodeTiers
from kvtide.tiers.config import parse_tiers

SLOTS = 12
FEW = some.integers(0, 12)
MANY = FEW | some.integers(0, (1 << 63) - 1)
KEY = some.integers(0, 20).map(lambda number: bytes([number]) * 4)
KEYS = some.lists(KEY, max_size=8)
OFFERS = some.builds(
    Offer,
    group=some.integers(0, 2),
    keys=KEYS,
    parent=some.none() | KEY,
    end_tokens=FEW.map(lambda blocks: blocks * 4) | MANY,
    gone=some.lists(FEW, max_size=2),
    needs_prefix=some.booleans(),
    touch=some.booleans(),
)
CALLS: some.SearchStrategy[Call] = some.one_of(
    some.builds(LookUp, id=FEW, keys=some.lists(KEYS, min_size=1, max_size=3), device_tokens=MANY, num_tokens=MANY),
    some.builds(Reserve, id=FEW, offers=some.lists(OFFERS, max_size=3), room_blocks=FEW),
    some.builds(Settle, runs=some.lists(FEW, max_size=5), kept=some.booleans()),
    some.builds(Release, lease=FEW, used=some.booleans()),
    some.builds(Cut, run=FEW, keep_blocks=FEW),
    some.builds(Ready, slots=FEW),
)


def frame_of(call: Call, left_out: int) -> Frame:
    """Return a call, with a number in it that says how many keys were left out."""
    with patch("kvtide.node.codec.pack_keys", lambda keys, first=0: pack_keys(keys, left_out)):
        return call_frame(call)


def tiers_that_never_open() -> NodeTiers:
    loop: Any = SimpleNamespace(later=lambda *_: None, post=lambda _: None)
    tiers = NodeTiers(parse_tiers([{"type": "null"}]), loop, lambda _: None)
    tiers._begin = lambda *_: True  # type: ignore[method-assign]
    return tiers


@pytest.mark.parametrize("below", [False, True], ids=["", "tiers"])
@pytest.mark.parametrize(
    "groups",
    [
        (FullAttention(4),),
        (SlidingWindow(4, 8),),
        (FullAttention(4), SlidingWindow(8, 16)),
        (ChunkedLocal(4, 16), StateSpace(8)),
    ],
    ids=str,
)
@given(
    said=some.lists(some.tuples(some.sampled_from([1, 2]), CALLS, some.just(0) | FEW | some.integers(0, (1 << 32) - 1)))
)
def test_whatever_engines_ask_for_the_node_lives_and_nothing_is_left(
    groups: tuple[Group, ...], said: list[tuple[int, Call, int]], below: bool
) -> None:
    spaces = Spaces(SLOTS, lambda _: None, tiers=tiers_that_never_open() if below else None)
    namespace: dict[str, Any] = {"groups": described(groups), "parts": [1]}
    owners = {number: Owner(number, "engine", "") for number in (1, 2)}
    with patch("kvtide.node.spaces.gc"):  # of all tests, again and again
        for owner in owners.values():
            spaces.attach(owner, Hello(Role.SCHEDULER, namespace=namespace))
    (space,) = spaces._spaces.values()
    space.index.grow(SLOTS)
    for owner in owners.values():
        spaces.handle(owner, call_frame(Ready(SLOTS)))
    for number, call, left_out in said:
        with contextlib.suppress(BadFrame):
            spaces.handle(owners[number], frame_of(call, left_out))
    for owner in owners.values():
        spaces.ending(owner)
        spaces.over(owner)
    fill = space.index._index.fill()
    assert (fill.free + fill.cached, fill.pinned) == (SLOTS, 0)
