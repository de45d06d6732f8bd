"""Lazy mode: what is about to be evicted from the device is stored in time, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtide.core import (
    BelowConfig,
    Fetch,
    FreeBlock,
    FullAttention,
    Group,
    NotStored,
    SlidingWindow,
    StateSpace,
    Stored,
)
from kvtide.core.chain import Chain
from kvtide.core.storing.lazy import LOOKAHEAD_STEPS, LazyPlanner, clean_target
from tests.support import NoRoomError, World, keys_of, text

TARGET = 4
"""Clean blocks that the worlds below keep: two steps of 8 tokens in blocks of 4."""


def lazy(**options: object) -> World:
    return World(**{"mode": "lazy", "step_tokens": 8, "device_blocks": 12, "pin_budget": 12, **options})  # type: ignore[arg-type]


def fill(world: World, name: str, tokens: int) -> None:
    """Leave a prefix in the free queue, without any plan."""
    world.finish(world.prefill(name, text(name, tokens)))


def front(world: World, count: int) -> list[bool]:
    """Return for the first blocks of the free queue whether they are clean."""
    walk = world.pool.walk_free(None)
    assert walk is not None
    has = world.host_pool.has
    queue = [free.content is None or has(free.content.group, free.content.key) for free in walk]
    return queue[:count]


@pytest.mark.parametrize(
    ("groups", "step_tokens", "device_blocks", "slots", "target"),
    [
        ((FullAttention(16),), 2048, 1_000, 10_000, LOOKAHEAD_STEPS * 128),
        ((FullAttention(16),), 1, 7, 10_000, LOOKAHEAD_STEPS),
        ((FullAttention(16),), 17, 15, 10_000, LOOKAHEAD_STEPS * 2),
        (
            (FullAttention(16), SlidingWindow(16, 100), StateSpace(64)),
            64,
            70,
            10_000,
            LOOKAHEAD_STEPS * (4 + 4 + 1),
        ),
        ((FullAttention(16),), 2048, 10_000, 10_000, 2_500),
        ((FullAttention(16),), 2048, 10_000, 2_000, 2_000),
        ((FullAttention(16),), 2048, 100, 10_000, 100),
        ((FullAttention(16),), 2048, 100, 30, 30),
    ],
)
def test_as_many_blocks_are_kept_clean_as_the_next_steps_can_allocate(
    groups: tuple[Group, ...], step_tokens: int, device_blocks: int, slots: int, target: int
) -> None:
    assert clean_target(groups, step_tokens, device_blocks, slots) == target


def test_f3_several_loads_in_the_first_step_that_has_any_evict_nothing_that_was_not_stored() -> None:
    """How much is loaded in one step is not known before it happened: a quarter of the device is clean by then."""
    world = lazy(device_blocks=64, pin_budget=6)
    for name in ("a", "b", "c", "d"):
        fill(world, name, 64)
    for _ in range(4):
        world.step()
    before = {(free.content.group, free.content.key) for free in world.pool.walk_free(None) or () if free.content}
    blocks = world.pool.allocate(16)
    assert blocks is not None
    gone = [(group, key) for group, key in before if world.pool.find(group, key) is None]
    assert len(gone) == 16
    assert all(world.manager.is_cached(group, key) for group, key in gone)


def test_running_requests_are_not_stored() -> None:
    world = lazy()
    world.prefill("r", text("a", 48))
    assert not world.plan().stores
    assert not world.manager.busy


def test_nothing_is_stored_while_enough_empty_blocks_are_ahead() -> None:
    world = lazy()
    fill(world, "a", 4 * (12 - TARGET))
    assert not world.plan().stores


def test_the_blocks_that_are_evicted_next_are_stored_and_no_others() -> None:
    world = lazy()
    fill(world, "a", 4 * 12)
    (copy,) = world.plan().stores
    # They leave the queue while they are stored, so the walk goes on until it sees the end: nothing else is clean.
    assert len(copy.blocks) == 12
    world.run(copy)
    assert world.cached_blocks(text("a", 48)) == list(range(12))


def test_the_tail_is_stored_first_when_there_is_a_budget() -> None:
    world = lazy(pin_budget=3)
    fill(world, "a", 4 * 12)
    (copy,) = world.plan().stores
    world.run(copy)
    assert world.cached_blocks(text("a", 48)) == [9, 10, 11]


def test_blocks_of_one_prefix_are_stored_as_one_chain_with_its_head_first() -> None:
    world = lazy(events=True)
    fill(world, "a", 4 * 12)
    world.step()
    (event,) = world.manager.take_events()
    assert getattr(event, "keys", None) == tuple(keys_of(text("a", 48), 4))


def test_a_tail_is_stored_as_what_continues_its_head() -> None:
    world = lazy(pin_budget=2, events=True)
    fill(world, "a", 4 * 12)
    world.step()
    keys = tuple(keys_of(text("a", 48), 4))
    assert world.manager.take_events() == [Stored(0, keys[10:], keys[9])]


def test_blocks_of_two_prefixes_are_two_chains() -> None:
    world = lazy(events=True)
    fill(world, "a", 4 * 6)
    fill(world, "b", 4 * 6)
    world.step()
    stored = {event for event in world.manager.take_events() if isinstance(event, Stored)}
    assert stored == {Stored(0, tuple(keys_of(text(name, 24), 4)), None) for name in "ab"}


def test_the_same_content_in_two_blocks_is_stored_once() -> None:
    world = lazy()
    for name in ("r1", "r2"):
        request = world.add(name, text("a", 24))
        world.place(request, 0, 0)
        world.manager.admit(name, 0)
        world.compute(request)
    for request in list(world.requests.values()):
        world.finish(request)
    assert sum(len(copy.blocks) for copy in world.plan().stores) == 6


def test_what_is_on_the_host_is_clean() -> None:
    world = lazy()
    fill(world, "a", 4 * 12)
    world.step()
    request = world.add("again", text("a", 48))
    assert not world.admit(request)
    world.compute(request)
    world.finish(request)
    assert not world.plan().stores
    assert world.manager.metrics.stored_blocks == 12


# ---------------------------------------------------------------------- the cursor


class Watch:
    """Counts the blocks of the free queue that are looked at."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[int] = []
        walk_free = world.pool.walk_free

        def watched(after: int | None) -> Iterator[FreeBlock] | None:
            walk = walk_free(after)
            return None if walk is None else self.count(walk)

        monkeypatch.setattr(world.pool, "walk_free", watched)

    def count(self, walk: Iterator[FreeBlock]) -> Iterator[FreeBlock]:
        for free in walk:
            self.seen.append(free.block)
            yield free

    def take(self) -> list[int]:
        seen, self.seen = self.seen, []
        return seen


def test_a_clean_queue_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lazy()
    watch = Watch(world, monkeypatch)
    world.plan()
    assert len(watch.take()) == TARGET
    world.plan()
    assert watch.take() == []


def test_what_was_stored_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lazy()
    fill(world, "a", 4 * 12)
    world.step()
    world.step()
    watch = Watch(world, monkeypatch)
    world.plan()
    assert watch.take() == []


def test_what_was_clean_before_something_was_stored_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lazy()
    world.pool.allocate(9)
    fill(world, "a", 4)
    watch = Watch(world, monkeypatch)
    assert world.plan().stores
    empty, _, dirty = watch.take()
    assert world.pool.content(dirty) is not None
    world.plan()
    assert empty not in watch.take()


def test_computing_is_no_reason_to_look_at_clean_blocks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lazy()
    fill(world, "a", 4 * 6)
    world.step()
    request = world.prefill("r", text("b", 3), 2)
    world.step()
    watch = Watch(world, monkeypatch)
    world.compute(request, 3)
    world.step()
    assert watch.take() == []


def test_a_queue_shorter_than_the_target_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lazy()
    world.pool.allocate(10)
    watch = Watch(world, monkeypatch)
    world.plan()
    assert len(watch.take()) == 2
    world.plan()
    assert watch.take() == []


def test_after_allocation_only_what_is_behind_the_cursor_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lazy()
    watch = Watch(world, monkeypatch)
    world.plan()
    first = watch.take()
    taken = world.pool.allocate(2)
    assert taken == first[:2]
    world.plan()
    assert len(watch.take()) == 2, "two have left, two more are looked at"


def test_a_cursor_whose_block_was_taken_starts_again_at_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    world = lazy()
    watch = Watch(world, monkeypatch)
    world.plan()
    first = watch.take()
    world.pool.pin([first[-1]])
    world.plan()
    assert watch.take()[: TARGET - 1] == first[:-1]


def test_a_block_that_came_back_behind_the_cursor_is_not_skipped() -> None:
    world = lazy()
    fill(world, "a", 4 * 6)
    fill(world, "b", 4 * 6)
    world.step()
    for name in "ab":  # everything is taken out of the queue and comes back in another order
        request = world.begin(f"again {name}", text(name, 24) + text("more", 4))
        world.step()
        world.compute(request)
        world.finish(request)
        world.step()
    assert all(front(world, TARGET))


def test_a_reset_looks_at_everything_again() -> None:
    world = lazy()
    fill(world, "a", 4 * 12)
    world.step()
    world.step()  # all is clean now, and the cursor behind it
    world.manager.reset()  # the device keeps its blocks here: they are dirty now
    assert sum(len(copy.blocks) for copy in world.plan().stores) == 12


def test_what_was_on_its_way_up_from_below_and_did_not_come_is_stored() -> None:
    world = lazy(device_blocks=4, pin_budget=4, below=BelowConfig(through=frozenset({"all"})), min_fetch_tokens=4)
    fill(world, "a", 12)
    world.drain()
    kept = dict(world.below)
    world.reset()
    world.drain()
    world.below, world.weights = kept, 0  # only this test has forgotten
    request = world.add("r", text("a", 12))
    world.manager.reserve(world.match(request))
    world.plan()
    (lookup,) = world.errands.values()
    world.answer(lookup)
    (fetch,) = (errand for errand in world.plan().errands if isinstance(errand, Fetch))
    fill(world, "a", 12)  # somebody does not wait, and computes what is on its way up
    fill(world, "b", 4)
    for _ in range(3):  # in the queue, what comes up is between blocks that are clean by then
        world.plan()
        world.drain_copies()
    assert world.cached_blocks(text("a", 12)) == [2]
    world.answer(fetch, misses=range(len(fetch.slots)))
    world.finish(request)
    world.drain()
    assert world.cached_blocks(text("a", 12)) == [0, 1, 2]


# ---------------------------------------------------------------------- limits


def test_stores_stay_within_the_pin_budget() -> None:
    world = lazy(pin_budget=5)
    fill(world, "a", 4 * 12)
    stored = 0
    while plan := world.plan():
        world.check()
        assert sum(len(copy.blocks) for copy in plan.stores) <= 5
        for copy in plan.stores:
            stored += len(copy.blocks)
            world.run(copy)
    assert stored == world.manager.metrics.stored_blocks
    assert len(front(world, TARGET)) == TARGET
    assert all(front(world, TARGET))


def test_a_host_that_is_all_pinned_stores_nothing_and_goes_on_when_it_is_not() -> None:
    world = lazy(host_blocks=4)
    fill(world, "a", 4 * 4)
    fill(world, "b", 4 * 8)
    world.host_pool.pin(range(4))
    slots = world.host_pool.take(4)
    for _ in range(2):
        assert not world.plan().stores
        assert not any(front(world, TARGET))
    world.host_pool.unpin(slots)
    assert sum(len(copy.blocks) for copy in world.plan().stores) == 4


def test_blocks_that_a_full_host_refused_are_offered_again_and_not_skipped() -> None:
    world = lazy(host_blocks=6)
    fill(world, "a", 4 * 6)
    fill(world, "b", 4 * 6)
    world.step()
    reader = world.add("r", [*text("a", 24), "x"])
    match = world.manager.match("r", 0, 25)
    world.manager.reserve(match)
    for _ in range(3):
        world.step()
    world.finish(reader)
    for _ in range(3):
        world.step()
    assert all(front(world, TARGET))
    world.drain()


def test_a_block_that_a_full_host_refused_is_not_skipped_although_clean_ones_are_behind_it() -> None:
    world = lazy(host_blocks=4, device_blocks=8, step_tokens=4, pin_budget=8)
    held = world.pool.allocate(6) or []
    fill(world, "clean", 8)
    world.step()
    world.add("keeps its slots", text("clean", 9))
    world.manager.reserve(world.manager.match("keeps its slots", 0, 9))
    uses_its_blocks = world.begin("uses its blocks", text("clean", 9))
    world.pool.free(held[:2])
    fill(world, "under way", 8)
    (under_way,) = world.plan().stores
    world.pool.free(held[2:3])
    fill(world, "refused", 4)
    world.finish(uses_its_blocks)
    assert front(world, 3) == [False, True, True]
    assert not world.plan().stores, "the host has no room"
    world.run(under_way)
    world.pool.allocate(2)  # the blocks of that copy, which came back as the next victims
    world.step()
    assert world.cached_blocks(text("refused", 4)) == [0]


def test_what_is_over_the_budget_is_not_skipped_although_clean_ones_are_behind_it() -> None:
    world = lazy(pin_budget=1)
    held = world.pool.allocate(8) or []
    fill(world, "clean", 16)
    for _ in range(8):
        world.step()
    uses_its_blocks = world.begin("uses its blocks", text("clean", 17))
    world.pool.free(held[:3])
    fill(world, "dirty", 12)
    world.finish(uses_its_blocks)
    assert front(world, 7) == [False] * 3 + [True] * 4
    for _ in range(8):
        world.step()
    assert all(front(world, 7))


def test_an_idle_engine_goes_on_until_the_next_victims_are_clean() -> None:
    world = lazy(pin_budget=1)
    fill(world, "a", 4 * 12)
    world.step()
    world.drain()
    assert all(front(world, TARGET))


def test_a_failed_store_is_tried_again() -> None:
    world = lazy()
    fill(world, "a", 4 * 12)
    world.step(fails=lambda _: True)
    assert world.cached_blocks(text("a", 48)) == []
    assert world.manager.busy
    world.drain()
    assert world.cached_blocks(text("a", 48)) == list(range(12))


def test_a_tail_whose_store_failed_is_tried_again_although_its_head_is_not_on_the_host() -> None:
    world = lazy(pin_budget=2)
    fill(world, "a", 4 * 12)
    world.step(fails=lambda _: True)
    world.step()
    assert world.cached_blocks(text("a", 48)) == [10, 11]
    assert not world.manager.metrics.not_stored


def test_a_store_that_fails_for_good_is_counted() -> None:
    world = lazy()
    fill(world, "a", 4 * 12)
    world.step(fails=lambda _: True)
    world.fill_device()  # nobody can hand it on
    world.drain()
    assert world.manager.metrics.not_stored == {NotStored.EVICTED_FROM_DEVICE: 12}


@pytest.mark.parametrize("host_blocks", [1, 3, 12, 64])
@pytest.mark.parametrize("broken", [False, True])
def test_an_idle_engine_comes_to_rest(host_blocks: int, broken: bool) -> None:
    world = lazy(host_blocks=host_blocks, pin_budget=3)
    fill(world, "a", 4 * 6)
    fill(world, "b", 4 * 6)
    for _ in range(60):
        world.step(fails=lambda _: broken, idle=True)
    assert not world.manager.busy
    before = world.manager.metrics.stored_blocks + world.manager.metrics.stores_failed
    world.step()
    assert world.manager.metrics.stored_blocks + world.manager.metrics.stores_failed == before
    world.check()


def test_what_failed_for_good_is_tried_again_once_the_engine_computes() -> None:
    world = lazy()
    running = world.prefill("r", text("b", 5), 4)
    fill(world, "a", 4 * 11)
    for _ in range(10):
        world.step(fails=lambda _: True)
    assert not world.plan().stores, "an idle engine comes to rest"
    world.compute(running)
    world.step()
    world.step()
    assert all(front(world, TARGET)), "the cursor went over blocks that were given up for the time being"


# ---------------------------------------------------------------------- in any order


LAYOUTS: list[tuple[Group, ...]] = [
    (FullAttention(4),),
    (FullAttention(4), SlidingWindow(4, 9)),
    (FullAttention(4), StateSpace(8)),
]


@given(
    groups=st.sampled_from(LAYOUTS),
    turns=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40)), min_size=1, max_size=12),
)
def test_whatever_the_device_evicts_is_on_the_host_by_then(
    groups: tuple[Group, ...], turns: list[tuple[str, int]]
) -> None:
    world = lazy(groups=groups, device_blocks=40, pin_budget=40, host_blocks=400)
    computed: set[tuple[int, bytes]] = set()
    for number, (name, length) in enumerate(turns):
        tokens = text(name, length)
        world.serve(f"r{number}", tokens)
        world.check_visible(tokens)
        for index, group in enumerate(groups):
            computed |= {(index, key) for key in keys_of(tokens, group.block_tokens, index)}
        if len(groups) == 1:  # windows give up blocks that nobody computes again
            for index, key in computed:
                assert world.manager.is_cached(index, key) or world.pool.find(index, key) is not None
        for _ in range(2):
            world.step()
        target = clean_target(groups, 8, 40, 1_000)
        assert all(front(world, target)), "a dirty block is about to be evicted"
    assert world.manager.metrics.evicted_blocks == 0
    assert world.manager.metrics.stored_blocks <= len(computed), "something was stored twice"


Action = tuple[str, int, int]


@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["start", "start", "finish", "plan", "plan", "copy"]), st.integers(0, 5), st.integers(1, 40)
        ),
        max_size=40,
    )
)
def test_after_every_plan_the_next_victims_are_clean_or_on_their_way(actions: list[Action]) -> None:
    world = lazy(device_blocks=24, pin_budget=24, host_blocks=400)
    texts: set[tuple[str, int]] = set()
    for number, (what, which, length) in enumerate(actions):
        if what == "start":
            start(world, f"r{number}", text("abcdef"[which], length))
            texts.add(("abcdef"[which], length))
        elif what == "finish" and world.requests:
            world.finish(list(world.requests.values())[which % len(world.requests)])
        elif what == "plan":
            world.plan()
            assert all(front(world, TARGET))
        elif what == "copy" and world.pending:
            world.run(list(world.pending.values())[which % len(world.pending)].copy)
        world.check()
    distinct = {key for name, length in texts for key in keys_of(text(name, length), 4)}
    assert world.manager.metrics.stored_blocks <= len(distinct), "something was stored twice"


def start(world: World, request_id: str, tokens: list[str]) -> None:
    """Admit and compute a request, if there is room for it."""
    request = world.add(request_id, tokens)
    try:
        if not world.admit(request):
            world.compute(request)
    except NoRoomError:
        world.finish(request)


def test_a_host_smaller_than_the_target_lets_an_idle_engine_come_to_rest() -> None:
    world = World(mode="lazy", device_blocks=40, host_blocks=5, step_tokens=40)
    for name in "abcd":
        world.serve(name, text(name, 32))
    world.drain()  # fails when the manager stays busy: stores that evict each other for ever
    assert len(world.manager.metrics.not_stored) == 0


def test_stores_that_always_fail_let_an_idle_engine_come_to_rest() -> None:
    world = World(mode="lazy", device_blocks=16, step_tokens=40)
    world.finish(world.prefill("r", text("a", 32)))
    for _ in range(100):
        world.step(fails=lambda _: True)
    assert not world.manager.busy


def test_a_block_that_the_device_evicts_before_it_is_stored_is_counted() -> None:
    world = World(mode="lazy", device_blocks=8, step_tokens=4)
    world.pool.on_evicted = world.manager.evicted
    world.finish(world.prefill("r", text("a", 32)))
    world.step()
    stored = len(world.cached_blocks(text("a", 32)))
    assert 0 < stored < 8
    world.fill_device()
    assert world.manager.metrics.not_stored == {NotStored.EVICTED_FROM_DEVICE: 8 - stored}


def test_a_load_larger_than_a_step_raises_the_target_for_the_next_one() -> None:
    groups = (FullAttention(4),)
    assert clean_target(groups, 8, 16, 100) == LOOKAHEAD_STEPS * 2
    assert clean_target(groups, 8, 90, 100, loading_blocks=10) == LOOKAHEAD_STEPS * 12
    assert clean_target(groups, 8, 15, 100, loading_blocks=10) == 15
    assert clean_target(groups, 8, 100, 7, loading_blocks=10) == 7


@pytest.mark.parametrize(("loads", "most"), [([], 0), ([1], 1), ([8], 8), ([8, 3, 0], 8), ([3, 8], 8)])
def test_a_target_that_a_load_has_raised_stays(loads: list[int], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one may be as large."""
    world = lazy(device_blocks=40)
    planner = world.manager._planner
    for loading_blocks in loads:
        planner.plan(loading_blocks)
    planner.reset()
    watch = Watch(world, monkeypatch)
    planner.plan(0)
    assert len(watch.take()) == max(LOOKAHEAD_STEPS * (2 + most), 40 // 4)


def kept_out_world() -> World:
    """The device is full of what nobody has asked for a second time."""
    world = lazy(admission="second-use")
    fill(world, "a", 4 * 12)
    world.step()
    return world


def test_what_is_not_admitted_is_counted_once_as_long_as_the_device_has_it() -> None:
    world = kept_out_world()
    counted = world.manager.metrics.not_stored[NotStored.NOT_ADMITTED]
    assert counted == TARGET
    for free in list(world.pool.walk_free(None) or ())[:TARGET]:
        assert free.content is not None
        world.manager.evicted(free.content.group, free.content.key)
    assert world.manager.metrics.not_stored == {NotStored.NOT_ADMITTED: counted}


def test_what_is_not_admitted_is_counted_again_when_the_device_has_it_again() -> None:
    world = kept_out_world()
    counted = world.manager.metrics.not_stored[NotStored.NOT_ADMITTED]
    victim = next(world.pool.walk_free(None) or iter(())).content
    assert victim is not None
    for _ in range(2):
        world.manager.evicted(victim.group, victim.key)
    assert world.manager.metrics.not_stored == {NotStored.NOT_ADMITTED: counted + 1}


def test_what_is_remembered_of_blocks_that_were_not_admitted_is_bounded() -> None:
    """Not all engines say when the device evicts a block."""
    world = kept_out_world()
    for number in range(10):
        world.serve(f"other {number}", text(f"other {number}", 4 * 12))
    planner = world.manager._planner
    assert isinstance(planner, LazyPlanner)
    assert len(planner._kept_out) <= 12


def test_a_key_that_waits_to_be_stored_is_not_lost_yet_when_the_device_evicts_it() -> None:
    world = lazy(groups=(FullAttention(4), FullAttention(4)))
    world.manager._stores.defer(Chain(0, [b"waits"], None, 4))
    lost = []
    for group, key in ((0, b"waits"), (0, b"other"), (1, b"waits")):  # a key belongs to its group
        world.manager.evicted(group, key)
        lost.append(world.manager.metrics.not_stored[NotStored.EVICTED_FROM_DEVICE])
    assert lost == [0, 1, 2]


def test_a_host_whose_only_slot_is_the_parent_of_what_is_to_be_stored_is_nothing_to_wait_for() -> None:
    """Found by the simulator (seeds 393 and 2194): the manager stayed busy with nothing in flight."""
    world = World(mode="lazy", device_blocks=4, host_blocks=1, pin_budget=1, step_tokens=4)
    held = world.pool.allocate(3) or []
    fill(world, "a", 4)
    world.step()
    assert world.cached_blocks(text("a", 4)) == [0]
    world.begin("holds the parent", text("a", 5))
    for name, tokens in (("child", text("a", 8)), ("other", text("b", 4))):
        world.pool.free([held.pop()])
        world.finish(world.prefill(name, tokens))
    assert front(world, 2) == [False, False], "the child, and one that is over the budget"
    assert not world.plan().stores
    assert not world.manager.busy
