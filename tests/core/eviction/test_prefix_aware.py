"""The default policy: leaves only, least recently used first, tails before heads."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from kvtide.core.eviction import NO_PARENT, PrefixAware
from tests.contracts.eviction_contract import BLOCK_TOKENS, SLOTS, Pool, Step, clear, play_step, steps

Stamp = tuple[int, int]


class Model(Pool):
    """Knows when each slot was used last, and looks at all of them to say which may leave next."""

    def __init__(self, slots: int = SLOTS) -> None:
        super().__init__(PrefixAware, slots)
        self.now = 0
        self.stamp: dict[int, Stamp] = {}
        """Time of the last use; of what was used at the same time the furthest from the beginning is the oldest."""

    def tick(self) -> None:
        self.policy.tick()
        self.now += 1

    def add(self, count: int, parent: int = NO_PARENT, depth: int | None = None) -> list[int]:
        chain = super().add(count, parent, depth)
        self.renew(chain)
        return chain

    def use(self, chain: list[int]) -> None:  # type: ignore[override]
        super().use(chain)
        self.renew(chain)

    def renew(self, chain: list[int]) -> None:
        for slot in chain:
            self.stamp[slot] = (self.now, -self.depth[slot])

    def leaves(self) -> set[int]:
        return {slot for slot in self.parent if not self.pins[slot]} - set(self.parent.values())

    def evict(self, count: int) -> list[int]:
        """Compare each victim with what looking at everything finds. Of equals, any will do."""
        cached = dict(self.parent)
        victims = super().evict(count)
        gone = dict(cached)
        for victim in victims:
            self.parent = gone
            leaves = self.leaves()
            assert victim in leaves, f"slot {victim} is continued by a cached one"
            assert self.stamp[victim] == min(self.stamp[slot] for slot in leaves), f"slot {victim} is not the oldest"
            del gone[victim]
        self.parent = gone
        assert len(victims) == count or not self.leaves(), "there was more to evict"
        return victims


def play_on(model: Model, step: Step) -> None:
    if step[0] == "tick":
        model.tick()
    else:
        play_step(model, *step)


@given(sequence=steps)
def test_victims_are_the_oldest_leaves_as_found_by_looking_at_everything(sequence: list[Step]) -> None:
    model = Model()
    for step in sequence:
        play_on(model, step)
    model.evict(SLOTS)


@given(before=steps, orphans=st.lists(st.integers(1, 3), max_size=4), after=steps)
def test_adopted_orphans_are_leaves_of_their_parents(before: list[Step], orphans: list[int], after: list[Step]) -> None:
    model = Model()
    clear(model)
    waiting = []
    for size in orphans:
        if len(model.free) > size + 3:
            model.tick()
            waiting.append(model.add(size, depth=2)[0])
    for step in before[:20]:
        if step[0] not in ("evict", "clear"):
            play_on(model, step)
    if waiting and len(model.free) >= 2:
        parent = model.add(2)[-1]
        for child in waiting:
            model.adopt(child, parent)
    for step in after:
        play_on(model, step)
    model.evict(SLOTS)


def test_a_block_that_a_cached_block_continues_is_never_evicted() -> None:
    pool = Pool(PrefixAware)
    parent = pool.add(2)
    pool.policy.tick()
    child = pool.add(2, parent=parent[-1])
    assert pool.evict(3) == [*child[::-1], parent[1]], "not even if it is older"


def test_a_pinned_child_protects_its_parents() -> None:
    pool = Pool(PrefixAware)
    chain = pool.add(4)
    pool.pin(chain[2:3])
    assert pool.evict(SLOTS) == [chain[3]]
    pool.unpin(chain[2:3])
    assert pool.evict(SLOTS) == [chain[2], chain[1], chain[0]]


def test_a_pinned_parent_stays_when_its_children_leave() -> None:
    pool = Pool(PrefixAware)
    chain = pool.add(3)
    pool.pin(chain[:1])
    assert pool.evict(SLOTS) == [chain[2], chain[1]]
    pool.unpin(chain[:1])
    assert pool.evict(SLOTS) == [chain[0]]


def test_the_least_recently_used_leaf_goes_first() -> None:
    pool = Pool(PrefixAware)
    trunk = pool.add(2)
    branches = []
    for _ in range(3):
        pool.policy.tick()
        branches.append(pool.add(2, parent=trunk[-1]))
    pool.policy.tick()
    pool.use(trunk + branches[0])
    old, older, young = branches[2], branches[1], branches[0]
    assert pool.evict(SLOTS) == older[::-1] + old[::-1] + young[::-1] + trunk[::-1]


def test_a_use_of_the_head_alone_does_not_renew_the_tail() -> None:
    pool = Pool(PrefixAware)
    first = pool.add(3)
    pool.policy.tick()
    second = pool.add(2)
    pool.policy.tick()
    pool.use(first[:1])
    assert pool.evict(SLOTS) == [first[2], first[1], *second[::-1], first[0]]


def test_groups_that_were_used_together_shrink_together() -> None:
    pool = Pool(PrefixAware)
    groups = [pool.add(4), pool.add(4)]
    depths = dict(pool.depth)
    assert [depths[slot] for slot in pool.evict(SLOTS)] == [3, 3, 2, 2, 1, 1, 0, 0]
    assert groups[0] != groups[1]


def test_groups_with_other_block_sizes_shrink_together_in_tokens() -> None:
    pool = Pool(PrefixAware)
    policy = pool.policy
    policy.add([0, 1, 2, 3, 4, 5, 6, 7], NO_PARENT, BLOCK_TOKENS, BLOCK_TOKENS)
    policy.add([8, 9], NO_PARENT, 4 * BLOCK_TOKENS, 4 * BLOCK_TOKENS)
    order = policy.evict(SLOTS)
    # What is left covers whole large blocks: the large one that ends at token 32 leaves with the small one that does.
    assert set(order[:2]) == {7, 9}
    assert order[2:5] == [6, 5, 4]
    assert set(order[5:7]) == {3, 8}
    assert order[7:] == [2, 1, 0]


def test_an_adopted_orphan_protects_its_parent() -> None:
    pool = Pool(PrefixAware)
    orphan = pool.add(1, depth=3)
    pool.policy.tick()
    parent = pool.add(3)
    pool.adopt(orphan[0], parent[-1])
    pool.policy.tick()
    pool.use(orphan)
    assert pool.evict(1) == orphan, "the parent is older, and continued"


def test_an_orphan_whose_parent_never_comes_leaves_by_its_own_age() -> None:
    pool = Pool(PrefixAware)
    orphan = pool.add(1, depth=3)
    pool.policy.tick()
    other = pool.add(1)
    assert pool.evict(SLOTS) == orphan + other


def test_adoption_in_the_middle_of_a_chain_protects_only_what_is_before_it() -> None:
    pool = Pool(PrefixAware)
    orphan = pool.add(1, depth=2)
    pool.policy.tick()
    chain = pool.add(4)
    pool.adopt(orphan[0], chain[1])
    pool.pin(orphan)
    assert pool.evict(SLOTS) == [chain[3], chain[2]]


def test_slots_that_are_used_again_do_not_make_the_heap_grow() -> None:
    pool = Pool(PrefixAware)
    chains = [pool.add(3) for _ in range(8)]
    for _ in range(50):
        for chain in chains:
            pool.policy.tick()
            pool.use(chain)
            pool.pin(chain)
            pool.unpin(chain)
    assert isinstance(pool.policy, PrefixAware)
    assert len(pool.policy._heap) <= SLOTS


def test_a_prefix_longer_than_all_ticks_before_it_keeps_its_order() -> None:
    pool = Pool(PrefixAware)
    pool.policy.add([0, 1, 2], NO_PARENT, 10_000_000, 1_000_000)
    pool.policy.tick()
    pool.policy.add([3], NO_PARENT, 1, 1)
    assert pool.policy.evict(SLOTS) == [2, 1, 0, 3]


def test_a_child_that_also_comes_before_its_parent_is_not_linked() -> None:
    pool = Pool(PrefixAware)
    first, second = pool.add(2)
    for child in (first, second):
        pool.policy.adopt(child, second)
    assert pool.policy.ancestors(second, 3) is None
    assert pool.policy.evict(2) == [second, first]
