"""The host pool: every slot is free, being written or cached; what is pinned stays."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvtide.core import POLICIES, Cleared, FullAttention, Metrics, Removed, SlidingWindow, Stored
from kvtide.core.chain import Chain
from kvtide.core.events import EventStream
from kvtide.core.host_pool import HostPool
from kvtide.core.orphans import Orphans
from tests.support import keys_of, text

GROUPS = (FullAttention(4), SlidingWindow(4, 9))


class Bench:
    """A host pool, and what a test needs to fill it."""

    def __init__(self, slots: int = 8, policy: str = "prefix") -> None:
        self.metrics = Metrics()
        self.events = EventStream(True, self.metrics)
        self.pool = HostPool(slots, GROUPS, policy, self.events, self.metrics)

    def write(self, keys: list[bytes], parent: bytes | None = None, *, group: int = 0, depth: int = 0) -> Chain:
        """Take slots for keys and let them be written."""
        slots = self.pool.take(len(keys))
        assert len(slots) == len(keys)
        chain = Chain(group, list(keys), parent, (depth + 1) * 4, slots=slots)
        self.pool.assign(chain)
        return chain

    def cache(self, keys: list[bytes], parent: bytes | None = None, *, group: int = 0, depth: int = 0) -> Chain:
        """Write and commit."""
        chain = self.write(keys, parent, group=group, depth=depth)
        self.pool.tick()
        self.pool.commit(chain)
        return chain

    def cached(self, keys: list[bytes], group: int = 0) -> list[bool]:
        return [self.pool.is_cached(group, key) for key in keys]

    def known(self, group: int = 0) -> dict[bytes, int]:
        """Slots by key: the cached ones and those being written."""
        return self.pool._slot_of[group]


A, B = keys_of(text("a", 40), 4), keys_of(text("b", 40), 4)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_new_pool_is_all_free(bench: Bench) -> None:
    assert (bench.pool.num_free, bench.pool.num_cached, bench.pool.num_pinned()) == (8, 0, 0)


def test_taking_gives_different_slots_and_no_more_than_there_are(bench: Bench) -> None:
    slots = bench.pool.take(5) + bench.pool.take(5)
    assert sorted(slots) == list(range(8))
    assert bench.pool.take(1) == []


def test_a_key_being_written_is_known_and_not_visible(bench: Bench) -> None:
    chain = bench.write(A[:2])
    assert list(bench.known()) == A[:2]
    assert bench.cached(A[:2]) == [False, False]
    assert bench.pool.num_free == 6
    bench.pool.commit(chain)
    assert bench.cached(A[:2]) == [True, True]
    assert bench.pool.num_cached == 2


def test_groups_have_keys_of_their_own(bench: Bench) -> None:
    bench.cache(A[:1], group=0)
    assert bench.cached(A[:1], group=1) == [False]
    bench.cache(A[:1], group=1)
    assert bench.pool.slot_of(0, A[0]) != bench.pool.slot_of(1, A[0])


def test_slots_that_are_written_are_not_evicted(bench: Bench) -> None:
    bench.write(A[:8])
    assert bench.pool.take(1) == []


def test_an_abandoned_store_frees_its_slots_and_forgets_its_keys(bench: Bench) -> None:
    chain = bench.write(A[:3])
    bench.pool.abandon(chain)
    assert bench.pool.num_free == 8
    assert not bench.known()
    assert bench.events.take() == []


def test_room_is_made_by_evicting_as_little_as_is_needed(bench: Bench) -> None:
    bench.cache(A[:6])
    slots = bench.pool.take(4)
    assert len(slots) == 4
    assert bench.cached(A[:6]) == [True] * 4 + [False] * 2
    assert bench.metrics.evicted_blocks == 2


def test_pinned_slots_stay_until_the_last_pin_is_returned(bench: Bench) -> None:
    chain = bench.cache(A[:8])
    bench.pool.pin(chain.slots)
    bench.pool.pin(chain.slots[:1])
    assert bench.pool.num_pinned() == 8
    assert bench.pool.take(1) == []
    bench.pool.unpin(chain.slots)
    assert bench.pool.num_pinned() == 1
    assert len(bench.pool.take(8)) == 7
    bench.pool.unpin(chain.slots[:1])
    assert bench.pool.take(8) == chain.slots[:1]


def test_use_renews(bench: Bench) -> None:
    first, second = bench.cache(A[:4]), bench.cache(B[:4])
    bench.pool.tick()
    bench.pool.use(0, first.slots, 4)
    bench.pool.take(4)
    assert bench.cached(first.keys + second.keys) == [True] * 4 + [False] * 4


def test_a_child_that_was_there_first_protects_the_parent_that_comes_later(bench: Bench) -> None:
    bench.cache(A[2:4], A[1], depth=2)
    bench.cache(A[:2])
    bench.pool.tick()
    bench.pool.use(0, bench.pool.leading_slots(0, A[2:4]), 12)  # the child is the younger one now
    bench.pool.take(6)
    assert bench.cached(A[:4]) == [True, True, False, False]


def test_a_child_that_comes_later_protects_its_parent(bench: Bench) -> None:
    bench.cache(A[:2])
    child = bench.cache(A[2:4], A[1], depth=2)
    assert not bench.pool._orphans
    bench.pool.tick()
    bench.pool.use(0, child.slots, 12)  # the parent is the older one
    bench.pool.take(6)
    assert bench.cached(A[:4]) == [True, True, False, False]


def test_an_orphan_that_left_is_not_adopted(bench: Bench) -> None:
    bench.cache(A[2:4], A[1], depth=2)
    bench.pool.abandon(bench.write(B[:8]))
    bench.cache(A[:2])
    assert sorted(bench.pool.take(8)) == list(range(8)), "nothing is left that would protect the parent"


def test_a_child_committed_before_its_parent_in_one_go_is_linked(bench: Bench) -> None:
    parent, child = bench.write(A[:2]), bench.write(A[2:4], A[1], depth=2)
    bench.pool.commit(child)
    bench.pool.commit(parent)
    bench.pool.tick()
    bench.pool.use(0, child.slots, 12)
    bench.pool.take(5)
    assert bench.cached(A[:4]) == [True, True, True, False]


def test_what_waited_for_its_parent_before_a_clear_does_not_keep_it_afterwards(bench: Bench) -> None:
    bench.cache(A[2:4], A[1], depth=2)
    bench.pool.clear()
    bench.cache(A[:2])
    assert len(bench.pool.take(8)) == 8


def test_clear_forgets_all_and_frees_what_nobody_uses(bench: Bench) -> None:
    bench.cache(A[:4])
    bench.pool.clear()
    assert (bench.pool.num_free, bench.pool.num_cached) == (8, 0)
    assert not bench.known()
    assert sorted(bench.pool.take(8)) == list(range(8))


def test_slots_read_during_a_clear_are_free_after_the_last_reader(bench: Bench) -> None:
    chain = bench.cache(A[:3])
    bench.pool.pin(chain.slots)
    bench.pool.pin(chain.slots[:1])
    bench.pool.clear()
    assert bench.pool.num_free == 5
    bench.pool.unpin(chain.slots)
    assert bench.pool.num_free == 7
    bench.pool.unpin(chain.slots[:1])
    assert sorted(bench.pool.take(8)) == list(range(8))


def test_slots_written_during_a_clear_are_free_after_the_writer(bench: Bench) -> None:
    old = bench.write(A[:3])
    bench.pool.clear()
    assert bench.pool.num_free == 5
    new = bench.cache(A[:3])
    bench.pool.abandon(old)
    assert bench.cached(A[:3]) == [True] * 3, "the end of the old store must not forget the new one"
    assert set(old.slots).isdisjoint(new.slots)
    assert bench.pool.num_free == 5


def test_the_life_of_a_key_is_announced(bench: Bench) -> None:
    bench.cache(A[:5])
    bench.cache(A[:3], group=1)
    bench.pool.take(3)
    bench.pool.clear()
    stored_full, stored_window, *removed, cleared = bench.events.take()
    assert stored_full == Stored(0, tuple(A[:5]), None)
    assert stored_window == Stored(1, tuple(A[:3]), None)
    assert all(isinstance(event, Removed) for event in removed)
    assert sum(len(event.keys) for event in removed if isinstance(event, Removed)) == 3
    assert cleared == Cleared()


def test_a_prefix_with_holes_is_renewed_each_block_by_its_own_position() -> None:
    bench = Bench(slots=6)
    bench.cache(A[:4])
    bench.cache(A[2:4], A[1], group=1, depth=2)  # the beginning is not cached in the second group
    bench.pool.tick()
    bench.pool.use_keys(0, A[:4], 4)
    bench.pool.use_keys(1, A[:4], 4)
    bench.pool.take(2)
    assert bench.cached(A[:4]) == [True, True, True, False]
    assert bench.cached(A[:4], group=1) == [False, False, True, False]


def test_what_is_cached_of_a_prefix_with_holes_is_renewed_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(slots=8)
    first = bench.cache(A[1:3], A[0], group=1, depth=1)
    bench.write(A[3:4], A[2], group=1, depth=3)  # not there yet
    second = bench.cache(A[5:6], A[4], group=1, depth=5)
    third = bench.cache(A[7:8], A[6], group=1, depth=7)
    renewed: list[tuple[list[int], int, int]] = []
    monkeypatch.setattr(bench.pool._policy, "renew", lambda *run: renewed.append(run))
    assert bench.pool.use_keys(1, A[:8], 4) == bench.pool.slots_of(1, A[:8])
    assert renewed == [(first.slots, 8, 4), (second.slots, 24, 4), (third.slots, 32, 4)]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_slots_of_the_first_keys_are_found_up_to_the_first_that_is_not_cached(policy: str) -> None:
    for cached in range(8):
        for written in range(8 - cached):
            bench = Bench(slots=8, policy=policy)
            slots = bench.cache(A[:cached]).slots if cached else []
            if written:
                bench.write(A[cached : cached + written], A[cached - 1] if cached else None, depth=cached)
            if rest := 8 - cached - written:
                bench.cache(B[:rest])
            for count in range(9):
                assert bench.pool.leading_slots(0, A[:count]) == slots[:count]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prefix_of_which_nothing_is_cached_renews_nothing(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(policy=policy)
    renewed: list[tuple[list[int], int, int]] = []
    monkeypatch.setattr(bench.pool._policy, "renew", lambda *run: renewed.append(run))
    assert bench.pool.use_keys(0, [], 4) == []
    assert bench.pool.use_keys(0, A[:2], 4) == [None, None]
    assert not renewed


def test_slots_come_in_order_so_that_copies_are_contiguous(bench: Bench) -> None:
    assert bench.pool.take(3) == [0, 1, 2]
    assert bench.pool.take(8) == [3, 4, 5, 6, 7]


def test_policies_that_remember_what_left_know_the_keys_of_slots(bench: Bench) -> None:
    slots = bench.cache(A[:2]).slots
    assert [bench.pool._policy.keys[slot] for slot in slots] == A[:2]


# ---------------------------------------------------------------------- orphans


def test_orphans_are_given_to_their_parent_once_in_a_fixed_order() -> None:
    orphans = Orphans()
    for slot in (5, 2, 9):
        orphans.add(slot, 0, b"p")
    orphans.add(1, 1, b"p")
    assert orphans.take(0, b"p") == [2, 5, 9]
    assert orphans.take(0, b"p") == []
    assert len(orphans) == 1


def test_orphans_that_leave_are_forgotten() -> None:
    orphans = Orphans()
    orphans.add(5, 0, b"p")
    orphans.drop(5)
    orphans.drop(5)
    assert len(orphans) == 0
    assert not orphans._children
    assert orphans.take(0, b"p") == []


def test_orphans_stay_when_others_of_their_parent_leave() -> None:
    orphans = Orphans()
    for slot in (5, 2):
        orphans.add(slot, 0, b"p")
    orphans.drop(5)
    assert orphans.take(0, b"p") == [2]


def test_no_orphan_is_found_when_all_were_forgotten() -> None:
    orphans = Orphans()
    orphans.add(5, 0, b"p")
    orphans.clear()
    assert len(orphans) == 0
    assert orphans.take(0, b"p") == []


# ---------------------------------------------------------------------- in any order


class HostPoolMachine(RuleBasedStateMachine):
    """A host pool against plain sets: where each slot is, and what is visible."""

    def __init__(self) -> None:
        super().__init__()
        self.writing: list[Chain] = []
        self.abandoned: list[Chain] = []
        """Still being written when the pool was cleared."""
        self.visible: dict[bytes, int] = {}
        self.pins: list[list[int]] = []

    @initialize(policy=st.sampled_from(sorted(POLICIES)), slots=st.integers(1, 12))
    def start(self, policy: str, slots: int) -> None:
        self.bench = Bench(slots, policy)
        self.pool = self.bench.pool

    @rule(name=st.sampled_from("abc"), first=st.integers(0, 7), count=st.integers(1, 5))
    def write(self, name: str, first: int, count: int) -> None:
        keys = keys_of(text(name, 48), 4)
        wanted = keys[first : first + count]
        wanted = wanted[: next((index for index, key in enumerate(wanted) if self.pool.has(0, key)), len(wanted))]
        before = set(self.visible)
        slots = self.pool.take(len(wanted))
        self.forget(before)
        assert len(slots) <= len(wanted)
        if slots:
            parent = keys[first - 1] if first else None
            chain = Chain(0, wanted[: len(slots)], parent, (first + 1) * 4, slots=slots)
            self.pool.assign(chain)
            self.writing.append(chain)

    def forget(self, before: set[bytes]) -> None:
        """Take note of what was evicted: nothing that is pinned."""
        pinned = {slot for slots in self.pins for slot in slots}
        for key in before - set(self.bench.known()):
            assert self.visible[key] not in pinned
            del self.visible[key]

    @rule(which=st.integers(0, 100))
    def commit(self, which: int) -> None:
        if self.writing:
            chain = self.writing.pop(which % len(self.writing))
            self.pool.tick()
            self.pool.commit(chain)
            self.visible.update(zip(chain.keys, chain.slots, strict=True))

    @rule(which=st.integers(0, 100))
    def abandon(self, which: int) -> None:
        chains = self.abandoned or self.writing
        if chains:
            self.pool.abandon(chains.pop(which % len(chains)))

    @rule(which=st.integers(0, 100), count=st.integers(1, 4))
    def pin(self, which: int, count: int) -> None:
        slots = sorted(self.visible.values())
        if slots:
            first = which % len(slots)
            self.pins.append(slots[first : first + count])
            self.pool.pin(self.pins[-1])

    @rule(which=st.integers(0, 100))
    def unpin(self, which: int) -> None:
        if self.pins:
            self.pool.unpin(self.pins.pop(which % len(self.pins)))

    @rule(which=st.integers(0, 9))
    def clear(self, which: int) -> None:
        if not which:
            self.pool.clear()
            self.visible.clear()
            self.abandoned += self.writing
            self.writing = []

    @invariant()
    def every_slot_is_in_one_place(self) -> None:
        written = [slot for chain in self.writing + self.abandoned for slot in chain.slots]
        read_only = {slot for slots in self.pins for slot in slots} - set(self.visible.values())
        everywhere = [*self.pool._free, *written, *self.visible.values(), *read_only]
        assert sorted(everywhere) == list(range(self.pool.slots))
        assert self.pool.num_cached == len(self.visible)
        assert self.pool.num_pinned() == len({slot for slots in self.pins for slot in slots})

    @invariant()
    def exactly_what_was_committed_is_visible(self) -> None:
        known = self.bench.known()
        visible = {key: slot for key, slot in known.items() if self.pool.is_cached(0, key)}
        assert visible == self.visible
        writing = {key for chain in self.writing for key in chain.keys}
        assert known.keys() - visible == writing


TestHostPoolInAnyOrder = HostPoolMachine.TestCase
TestHostPoolInAnyOrder.settings = settings(max_examples=60, stateful_step_count=40)
