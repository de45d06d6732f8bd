"""What every eviction policy promises. Subclass `EvictionContract` and say which policy it is."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from kvtide.core import EvictionPolicy
from kvtide.core.eviction import NO_PARENT

SLOTS = 24
BLOCK_TOKENS = 4

# One suite runs as a method of several classes: that is what a contract is.
shared = settings(suppress_health_check=[HealthCheck.differing_executors])


class Pool:
    """Feeds a policy as a host pool does, and checks every victim."""

    def __init__(self, policy: type[EvictionPolicy], slots: int = SLOTS, names: list[bytes] | None = None) -> None:
        """`names` are the keys of the slots, which the test writes; otherwise no block comes twice."""
        self.names = names
        self.keys = [b""] * slots if names is None else names
        self.blocks = 0
        self.pins = [0] * slots
        self.policy = policy(slots, self.pins, self.keys)
        self.free = list(range(slots))
        self.parent: dict[int, int] = {}
        """Every cached slot, with the slot it continues."""
        self.depth: dict[int, int] = {}

    def add(self, count: int, parent: int = NO_PARENT, depth: int | None = None) -> list[int]:
        """Let a new chain be cached; return its slots, head first."""
        chain, self.free = self.free[:count], self.free[count:]
        assert len(chain) == count, "the test has no slots left"
        for slot in chain if self.names is None else ():
            self.blocks += 1
            self.keys[slot] = b"block %d" % self.blocks
        first = depth if depth is not None else self.depth.get(parent, -1) + 1
        self.policy.add(chain, parent, (first + 1) * BLOCK_TOKENS, BLOCK_TOKENS)
        for index, slot in enumerate(chain):
            self.parent[slot], parent = parent, slot
            self.depth[slot] = first + index
        return chain

    def adopt(self, child: int, parent: int) -> None:
        self.policy.adopt(child, parent)
        self.parent[child] = parent

    def use(self, chain: Sequence[int]) -> None:
        self.policy.use(chain, (self.depth[chain[0]] + 1) * BLOCK_TOKENS, BLOCK_TOKENS)

    def pin(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.pins[slot] += 1

    def unpin(self, slots: Sequence[int]) -> None:
        released = []
        for slot in slots:
            self.pins[slot] -= 1
            if not self.pins[slot]:
                released.append(slot)
        self.policy.release(released)

    def evict(self, count: int) -> list[int]:
        """Evict, and check that each victim could be one."""
        victims = self.policy.evict(count)
        assert len(victims) <= count
        assert len(set(victims)) == len(victims), "a slot was evicted twice"
        for slot in victims:
            assert slot in self.parent, f"slot {slot} is not cached"
            assert not self.pins[slot], f"slot {slot} is pinned"
            del self.parent[slot], self.depth[slot]
        for slot, parent in self.parent.items():
            if parent in victims:  # not every policy spares parents, and the slot will hold something else
                self.parent[slot] = NO_PARENT
        self.free += victims
        return victims

    def branch(self, slot: int) -> list[int]:
        """Return the slots from the beginning of the prefix (as far as it is cached) to `slot`, head first."""
        chain = []
        while slot in self.parent:
            chain.append(slot)
            slot = self.parent[slot]
        return chain[::-1]


Step = tuple[str, int, int]
steps: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(["tick", "add", "add", "continue", "continue", "use", "pin", "unpin", "evict", "clear"]),
        st.integers(0, 1_000),
        st.integers(1, 5),
    ),
    max_size=60,
)


def play(pool: Pool, sequence: list[Step]) -> None:
    """Do to a pool what a host pool could do: `which` and `size` choose among what is possible."""
    for what, which, size in sequence:
        play_step(pool, what, which, size)


def play_step(pool: Pool, what: str, which: int, size: int) -> list[int]:
    """Do one thing; return the victims if something was evicted."""
    cached = sorted(pool.parent)
    chosen = cached[which % len(cached)] if cached else None
    pinned = [slot for slot in cached if pool.pins[slot]]
    if what == "tick":
        pool.policy.tick()
    elif what == "add" and len(pool.free) >= size:
        pool.add(size)
    elif what == "evict":
        return pool.evict(size)
    elif what == "clear" and which < 100:
        clear(pool)
    elif what == "unpin" and pinned:
        pool.unpin([pinned[which % len(pinned)]])
    elif chosen is None:
        pass
    elif what == "continue" and len(pool.free) >= size:
        pool.add(size, parent=chosen)
    elif what == "use":
        pool.use(pool.branch(chosen))
    elif what == "pin":
        pool.pin(pool.branch(chosen)[-size:])
    return []


def clear(pool: Pool) -> None:
    """Forget everything, as a reset does. Pins of what is forgotten are returned without `release`."""
    pool.policy.clear()
    pool.free += sorted(pool.parent)
    for slot in pool.parent:
        pool.pins[slot] = 0
    pool.parent.clear()
    pool.depth.clear()


class EvictionContract:
    """One suite for every policy."""

    policy: type[EvictionPolicy]

    @pytest.fixture
    def pool(self) -> Pool:
        return Pool(self.policy)

    def test_nothing_cached_means_nothing_to_evict(self, pool: Pool) -> None:
        assert pool.evict(5) == []

    def test_nothing_is_evicted_when_nothing_is_asked_for(self, pool: Pool) -> None:
        pool.add(4)
        assert pool.evict(0) == []
        assert len(pool.evict(SLOTS)) == 4

    def test_never_more_than_asked_and_everything_in_the_end(self, pool: Pool) -> None:
        pool.add(5)
        pool.add(4)
        assert len(pool.evict(2)) == 2
        assert len(pool.evict(3)) == 3
        assert len(pool.evict(SLOTS)) == 4
        assert pool.evict(1) == []

    def test_the_tail_of_a_chain_leaves_before_its_head(self, pool: Pool) -> None:
        chain = pool.add(5)
        assert pool.evict(SLOTS) == chain[::-1]

    def test_of_two_prefixes_the_one_not_used_since_leaves_first(self, pool: Pool) -> None:
        first, second = pool.add(3), pool.add(3)
        pool.policy.tick()
        pool.use(first)
        assert pool.evict(SLOTS) == second[::-1] + first[::-1]

    def test_a_pinned_slot_is_not_evicted(self, pool: Pool) -> None:
        chain = pool.add(3)
        pool.pin(chain)
        assert pool.evict(SLOTS) == []

    def test_what_is_released_can_be_evicted_again(self, pool: Pool) -> None:
        chain = pool.add(3)
        pool.pin(chain)
        pool.evict(SLOTS)
        pool.unpin(chain)
        assert sorted(pool.evict(SLOTS)) == sorted(chain)

    def test_a_pin_that_nobody_tried_to_evict_leaves_no_trace(self, pool: Pool) -> None:
        chain = pool.add(3)
        pool.pin(chain)
        pool.unpin(chain)
        assert pool.evict(SLOTS) == chain[::-1]

    def test_a_slot_pinned_twice_waits_for_both(self, pool: Pool) -> None:
        chain = pool.add(1)
        pool.pin(chain)
        pool.pin(chain)
        pool.unpin(chain)
        assert pool.evict(1) == []
        pool.unpin(chain)
        assert pool.evict(1) == chain

    def test_pinned_slots_do_not_keep_others_from_being_evicted(self, pool: Pool) -> None:
        pinned, others = pool.add(3), pool.add(3)
        pool.pin(pinned)
        assert sorted(pool.evict(SLOTS)) == sorted(others)

    def test_a_slot_can_be_cached_again_after_it_was_evicted(self, pool: Pool) -> None:
        for _ in range(4):
            pool.add(SLOTS)
            assert len(pool.evict(SLOTS)) == SLOTS

    def test_a_chain_that_is_longer_than_what_is_asked_is_cut_at_its_tail(self, pool: Pool) -> None:
        chain = pool.add(6)
        assert pool.evict(2) == chain[:3:-1]
        assert pool.evict(2) == chain[3:1:-1]

    def test_clear_forgets_everything(self, pool: Pool) -> None:
        pool.add(6)
        clear(pool)
        assert pool.evict(SLOTS) == []

    def test_after_clear_the_pool_is_as_new(self, pool: Pool) -> None:
        pool.add(4, parent=pool.add(4)[-1])
        pool.pin([0, 5])
        pool.evict(2)
        clear(pool)
        chain = pool.add(SLOTS)
        assert pool.evict(SLOTS) == chain[::-1]

    def test_an_adopted_child_is_evicted_once(self, pool: Pool) -> None:
        child = pool.add(2, depth=3)
        parent = pool.add(3)
        pool.adopt(child[0], parent[-1])
        assert sorted(pool.evict(SLOTS)) == sorted(child + parent)

    @shared
    @given(sequence=steps)
    def test_whatever_happens_victims_are_cached_unpinned_and_taken_once(self, sequence: list[Step]) -> None:
        play(Pool(self.policy), sequence)  # `evict` checks

    @shared
    @given(sequence=steps)
    def test_whatever_happened_everything_leaves_once_it_is_unpinned(self, sequence: list[Step]) -> None:
        pool = Pool(self.policy)
        play(pool, sequence)
        pool.evict(SLOTS)
        for slot in sorted(pool.parent):
            while pool.pins[slot]:
                pool.unpin([slot])
        pool.evict(SLOTS)
        assert not pool.parent
        assert sorted(pool.free) == list(range(SLOTS))

    @shared
    @given(sequence=steps)
    def test_the_same_events_have_the_same_victims(self, sequence: list[Step]) -> None:
        first, second = Pool(self.policy), Pool(self.policy)
        for step in sequence:
            assert play_step(first, *step) == play_step(second, *step)
