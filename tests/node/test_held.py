"""Look-ups that a node answers a moment later, because a tier may know by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvtide.core import FullAttention
from kvtide.core.index.calls import Again, Call, Drop, Found, LookUp, Ready, Reply
from kvtide.node.codec import call_frame, read_reply
from kvtide.node.described_groups import described
from kvtide.node.frames import Frame
from kvtide.node.held import HOLD_S, HeldLookUps
from kvtide.node.hello import Hello, Role
from kvtide.node.owners import Owner
from kvtide.node.spaces import Spaces
from kvtide.node.tiers.node_tiers import NodeTiers
from kvtide.tiers.config import parse_tiers
from tests.core.index.bench import SIZE
from tests.node.support import wait_until


class Scripted:
    """An index that answers as a test says."""

    def __init__(self, *answers: Reply | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, Call]] = []
        self.errands = frozenset({1})

    def errands_of(self, owner: int, look_up: int) -> frozenset[int]:
        assert (owner, look_up) == (7, 3)
        return self.errands

    def handle(self, owner: int, call: Call) -> Reply | None:
        self.asked.append((owner, call))
        return self.answers.pop(0)


class Held:
    """Held look-ups, a clock that a test moves, and what engines were sent."""

    def __init__(self, *answers: Reply | None) -> None:
        self.index = Scripted(*answers)
        self.space: Any = SimpleNamespace(index=self.index)
        self.sent: list[tuple[int, Reply]] = []
        self.timers: list[Callable[[], None]] = []
        self.look_ups = HeldLookUps(self._later, self._send)
        self.owner = Owner(7, "engine", "")

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        assert seconds == HOLD_S
        self.timers.append(callback)

    def _send(self, owner: Owner, frame: Frame) -> None:
        self.sent.append((owner.number, read_reply(frame)))

    def time_is_up(self) -> None:
        while self.timers:
            self.timers.pop(0)()


@pytest.mark.parametrize(("errands", "found"), [([], Found(3)), ([2, 3], Found(3, waits=True))])
def test_a_look_up_is_answered_once_as_soon_as_it_is_known_what_is_below(errands: list[int], found: Found) -> None:
    """Nothing, or something that has to be brought up: that takes longer."""
    held = Held(found)
    held.look_ups.hold(held.owner, held.space, 3)
    held.look_ups.heard(held.space)
    assert held.sent == [], "tiers have said something else"
    held.index.errands = frozenset(errands)
    held.look_ups.heard(held.space)
    assert held.sent == [(7, found)]
    held.look_ups.heard(held.space)
    held.time_is_up()
    assert len(held.sent) == 1
    assert held.index.asked == [(7, Again(3))]


def test_a_look_up_that_takes_longer_is_told_to_wait_when_time_is_up() -> None:
    held = Held(Found(3, waits=True))
    held.look_ups.hold(held.owner, held.space, 3)
    held.time_is_up()
    assert held.sent == [(7, Found(3, waits=True))]
    held.look_ups.heard(held.space)
    assert len(held.sent) == 1, "from now on it asks"


def test_what_other_namespaces_hear_answers_nobody() -> None:
    held = Held()
    held.look_ups.hold(held.owner, held.space, 3)
    held.look_ups.heard(Held().space)
    assert held.index.asked == []


@pytest.mark.parametrize("id_", [3, None])
def test_nobody_is_told_who_does_not_want_to_know_any_more(id_: int | None) -> None:
    held = Held()
    held.look_ups.hold(held.owner, held.space, 3)
    held.look_ups.forget(held.owner, id_)
    held.index.errands = frozenset()
    held.look_ups.heard(held.space)
    held.time_is_up()
    assert (held.index.asked, held.sent) == ([], [])


def test_others_are_not_forgotten() -> None:
    held = Held(Found(3, waits=True))
    held.look_ups.hold(held.owner, held.space, 3)
    held.look_ups.forget(held.owner, 4)
    held.look_ups.forget(Owner(8, "another", ""))
    held.time_is_up()
    assert held.sent == [(7, Found(3, waits=True))]


def test_an_index_that_knows_the_owner_no_more_says_nothing() -> None:
    held = Held(None)
    held.look_ups.hold(held.owner, held.space, 3)
    held.index.errands = frozenset()
    held.look_ups.heard(held.space)
    held.time_is_up()
    assert held.sent == []


# ---------------------------------------------------------------------- in a node


class Tiers(NodeTiers):
    """Tiers that never open, and say what a test wants of how long they take."""

    def __init__(self, took_s: float) -> None:
        self.took_s = took_s
        self.timers: list[Callable[[], None]] = []
        loop: Any = SimpleNamespace(later=self._later, post=lambda _: None)
        super().__init__(parse_tiers([{"type": "null"}]), loop, lambda _: None)

    def _later(self, _: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def _begin(self, _name: str, _work: Callable[[], None]) -> bool:
        return True

    def look_up_s(self, name: str) -> float:
        assert name
        return self.took_s


class Node:
    """Spaces with one engine."""

    def __init__(self, took_s: float) -> None:
        self.tiers = Tiers(took_s)
        self.spaces = Spaces(1000, lambda _: None, tiers=self.tiers)
        self.sent: list[Reply] = []
        self.spaces.send = lambda _, frame: self.sent.append(read_reply(frame))
        self.owner = Owner(1, "engine", "")
        hello = Hello(Role.SCHEDULER, namespace={"parts": [100], "groups": described((FullAttention(SIZE),))})
        self.spaces.attach(self.owner, hello)
        (arena,) = self.spaces.join(self.owner, hello)
        wait_until(lambda: arena.ready_slots == arena.description.slots)
        self.say(Ready(arena.description.slots))

    def say(self, call: Call) -> list[Reply]:
        return [read_reply(frame) for frame in self.spaces.handle(self.owner, call_frame(call))]

    def time_is_up(self) -> None:
        while self.tiers.timers:
            self.tiers.timers.pop(0)()


@pytest.fixture
def quick() -> Iterator[Node]:
    node = Node(HOLD_S / 2)
    yield node
    node.spaces.close()


BLOCKS = 200
"""Enough that it is worth asking a tier."""
LOOK_UP = LookUp(5, [[block.to_bytes(4, "big") for block in range(BLOCKS)]], 0, BLOCKS * SIZE + 1)


def test_where_tiers_are_quick_an_engine_hears_a_moment_later(quick: Node) -> None:
    assert quick.say(LOOK_UP) == []
    quick.time_is_up()
    assert quick.sent == [Found(5, waits=True)]
    assert quick.say(Again(5)) == [Found(5, waits=True)], "who asks again is answered at once"


def test_where_tiers_are_slow_an_engine_is_not_held_up() -> None:
    node = Node(HOLD_S)
    assert node.say(LOOK_UP) == [Found(5, waits=True)]
    node.time_is_up()
    assert node.sent == []
    node.spaces.close()


def test_a_look_up_that_is_dropped_is_not_answered(quick: Node) -> None:
    assert quick.say(LOOK_UP) == []
    assert quick.say(Drop(5)) == []
    quick.time_is_up()
    assert quick.sent == []


def test_an_engine_that_has_gone_is_not_answered(quick: Node) -> None:
    assert quick.say(LOOK_UP) == []
    quick.spaces.ending(quick.owner)
    quick.time_is_up()
    assert quick.sent == []
