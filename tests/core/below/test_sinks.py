"""Sinks: blocks go down when the write policy says so, and what is lost is counted."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtide.core import BelowConfig, NotSunk, Sink
from kvtide.core.below import sinks as sinks_module
from kvtide.core.config import Admission
from tests.support import World, keys_of, text

A, B = text("a", 32), text("b", 32)


def world_of(*, through: tuple[Admission, ...] = (), on_evict: tuple[Admission, ...] = (), **options: object) -> World:
    below = BelowConfig(through=frozenset(through), on_evict=frozenset(on_evict))
    return World(below=below, min_fetch_tokens=1_000, **options)  # type: ignore[arg-type]


def store(world: World, name: str, tokens: list[str]) -> None:
    """Compute and store a prompt, and let what sinks wait for an answer."""
    world.finish(world.prefill(name, tokens))
    for _ in range(8):
        world.plan()
        world.drain_copies()
    world.plan()


def sinks_of(world: World) -> list[Sink]:
    return [errand for errand in world.errands.values() if isinstance(errand, Sink)]


def counted(world: World) -> int:
    metrics = world.manager.metrics
    return metrics.sunk_blocks + sum(metrics.not_sunk.values())


def test_written_through_a_block_sinks_once_it_is_stored() -> None:
    world = world_of(through=("all",))
    world.serve("r", A)
    world.drain()
    assert len(world.below) == 8
    assert world.manager.metrics.sunk_blocks == 8
    assert world.cached_blocks(A) == list(range(8)), "it stays on the host"


def test_what_comes_to_a_slot_after_something_that_has_sunk_sinks_too() -> None:
    """F4: otherwise it would never sink, and no reason would be counted."""
    world = world_of(through=("all",), host_blocks=4)
    for name in "abcde":
        world.serve(name, text(name, 16))
    assert world.manager.metrics.evicted_blocks == 16
    assert world.manager.metrics.sunk_blocks == len(world.below) == 20
    assert not world.manager.metrics.not_sunk


def test_what_sinks_is_pinned_until_every_rank_has_answered() -> None:
    world = world_of(through=("all",), host_blocks=64)
    store(world, "r", A)
    sinks = sinks_of(world)
    assert world.manager.gauges().slots_pinned == sum(len(sink.slots) for sink in sinks) == 8
    for sink in sinks:
        assert (sink.leaving, sink.used) == (False, False)
        world.answer(sink)
    assert world.manager.gauges().slots_pinned == 0


def test_at_most_an_eighth_of_the_host_sinks_at_a_time() -> None:
    world = world_of(through=("all",), host_blocks=16)
    store(world, "r", A)
    assert [len(sink.slots) for sink in sinks_of(world)] == [2]
    assert world.manager.gauges().sink_queue_blocks == 6
    assert world.manager.busy
    world.drain()
    assert len(world.below) == 8


def test_on_the_second_use_a_block_sinks_when_it_is_loaded() -> None:
    world = world_of(through=("second-use",), device_blocks=9)
    world.serve("r", A)
    world.drain()
    assert not world.below
    world.fill_device()
    world.serve("again", A)
    assert len(world.below) == 7, "what was loaded: the last block had to be computed"
    world.fill_device()
    world.serve("and again", A)
    assert world.manager.metrics.sunk_blocks == 7, "nothing sinks twice"


def test_written_on_evict_blocks_sink_before_the_host_is_full() -> None:
    world = world_of(on_evict=("all",), host_blocks=16)
    for name in "abc":
        world.serve(name, text(name, 32))
        world.drain()
    gauges = world.manager.gauges()
    assert gauges.slots_free >= 1
    stored, evicted = world.manager.metrics.stored_blocks, world.manager.metrics.evicted_blocks
    assert stored - evicted == gauges.slots_cached
    lost = world.manager.metrics.not_sunk[NotSunk.EVICTED]
    assert len(world.below) + lost == evicted


def full_host(**options: object) -> World:
    """A host of 80 blocks that is full of one prompt."""
    world = world_of(host_blocks=80, device_blocks=128, pin_budget=128, **options)  # type: ignore[arg-type]
    world.serve("r", text("a", 4 * 80))
    world.step()
    return world


def test_a_sixteenth_of_the_host_is_kept_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert full_host(on_evict=("all",)).manager.gauges().slots_free == 5
    monkeypatch.setattr(sinks_module, "AHEAD_BLOCKS_MAX", 3)
    world = full_host(on_evict=("all",))
    assert world.manager.gauges().slots_free == 3, "and not more than so many slots"
    assert world.manager.metrics.sunk_blocks == len(world.below) == 3
    assert world.cached_blocks(text("a", 320)) == list(range(77))


def test_what_was_written_through_sinks_again_to_tiers_that_are_written_on_evict() -> None:
    world = full_host(through=("all",), on_evict=("all",))
    assert world.manager.metrics.sunk_blocks == 80 + 5
    assert not world.manager.metrics.not_sunk


@pytest.mark.parametrize("slots", [1, 2])
def test_a_host_of_one_block_keeps_none_free_and_any_other_at_least_one(slots: int) -> None:
    world = world_of(on_evict=("all",), host_blocks=slots)
    world.serve("r", text("a", 4 * slots))
    world.step()
    assert world.cached_blocks(text("a", 8)) == [0]


def test_what_leaves_together_sinks_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks_module, "SINK_BLOCKS_MAX", 2)
    world = world_of(on_evict=("all",), host_blocks=80, device_blocks=128, pin_budget=128)
    store(world, "r", text("a", 4 * 80))
    names = [(0, key) for key in keys_of(text("a", 320), 4)[75:]]
    sinks = sinks_of(world)
    assert [list(sink.names) for sink in sinks] == [names[:2], names[2:4], names[4:]]
    assert not world.plan().errands, "what is leaving will be free"
    for sink in sinks:
        assert (sink.leaving, sink.used) == (True, False)
        world.answer(sink)
    assert not world.plan().errands
    assert world.manager.gauges().slots_free == 5


def loaded(world: World, count: int) -> None:
    """Load the first blocks of the prompt that fills the host, so that they have been of use."""
    world.fill_device()
    world.serve("again", text("a", 4 * count + 1))


@pytest.mark.parametrize("count", [0, 77])
def test_on_the_second_use_only_what_was_of_use_sinks_when_it_leaves(count: int) -> None:
    world = full_host(on_evict=("second-use",))
    assert not world.below
    loaded(world, count)
    world.serve("other", text("b", 32))
    assert len(world.below) == world.manager.metrics.sunk_blocks > 0 if count else not world.below
    assert not world.manager.metrics.not_sunk


def test_tiers_that_get_everything_do_not_get_it_again_when_it_is_used() -> None:
    world = full_host(through=("all",), on_evict=("second-use",))
    sunk = world.manager.metrics.sunk_blocks
    loaded(world, 40)
    assert world.manager.metrics.sunk_blocks == sunk


def test_what_is_of_use_before_its_turn_sinks_all_the_same() -> None:
    world = world_of(through=("all",), on_evict=("second-use",), host_blocks=24)
    store(world, "r", A)
    assert world.manager.gauges().sink_queue_blocks == 5
    world.fill_device()
    request = world.begin("again", text("a", 33))
    world.plan()
    world.drain_copies()
    world.finish(request)
    world.drain()
    assert len(world.below) == 8


def test_tiers_that_want_what_is_of_use_get_it_although_others_have_it_already() -> None:
    world = world_of(through=("all", "second-use"), host_blocks=128)
    world.serve("r", A)
    assert world.manager.metrics.sunk_blocks == 8
    new = world.prefill("new", B)
    world.plan()
    world.fill_device()
    request = world.begin("again", text("a", 33))
    world.drain_copies()  # what is new sinks with the next plan, and so does what is of use
    sinks = [errand for errand in world.plan().errands if isinstance(errand, Sink)]
    assert [(len(sink.slots), sink.used) for sink in sinks] == [(8, True), (8, False)]
    names = [{key for _, key in sink.names} for sink in sinks]
    assert names == [set(request.keys[0]), set(new.keys[0])]


def test_what_leaves_is_told_by_whether_it_was_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks_module, "AHEAD_BLOCKS_MAX", 0)
    world = full_host(on_evict=("all", "second-use"))
    loaded(world, 77)
    monkeypatch.setattr(sinks_module, "AHEAD_BLOCKS_MAX", 5)
    world.plan()
    assert [(len(sink.slots), sink.used) for sink in sinks_of(world)] == [(2, True), (3, False)]


def test_what_was_of_use_and_has_sunk_is_no_loss_when_it_is_evicted() -> None:
    world = world_of(through=("second-use",), host_blocks=8)
    world.serve("r", A)
    loaded(world, 8)
    assert world.manager.metrics.sunk_blocks == 8
    world.serve("other", B)
    assert world.manager.metrics.evicted_blocks == 8
    assert not world.manager.metrics.not_sunk


def test_what_was_of_use_and_had_no_time_to_sink_is_a_loss() -> None:
    world = world_of(through=("second-use",), host_blocks=8)
    world.serve("r", A)
    world.fill_device()
    request = world.begin("again", text("a", 33))
    world.plan()
    world.drain_copies()
    (sinking,) = sinks_of(world)
    assert (len(sinking.slots), sinking.leaving, sinking.used) == (1, False, True)
    world.finish(request)
    store(world, "other", B)
    assert world.manager.metrics.not_sunk == {NotSunk.EVICTED: 7}, "all but the one that was sinking"


@pytest.mark.parametrize("write", ["through", "on_evict"])
def test_what_came_up_from_below_is_no_loss_when_it_leaves_again(write: str) -> None:
    before = world_of(through=("all",))
    before.serve("r", A)
    below = BelowConfig(**{write: frozenset({"all"})})  # type: ignore[arg-type]
    world = World(below=below, min_fetch_tokens=4, host_blocks=16, device_blocks=64)
    world.below = dict(before.below)
    request = world.add("again", A)
    for _ in range(4):
        world.manager.reserve(world.match(request))
        world.step()
    world.finish(request)
    for name in "bc":
        world.serve(name, text(name, 64))
    assert world.cached_blocks(A) == []
    metrics = world.manager.metrics
    assert metrics.fetched_blocks == 7
    assert counted(world) == (metrics.stored_blocks if write == "through" else metrics.evicted_blocks - 7)


def test_a_slot_that_leaves_is_nobody_elses_until_it_has_sunk() -> None:
    world = world_of(on_evict=("all",), host_blocks=16)
    world.serve("a", A)
    store(world, "b", B)
    sinks = [sink for sink in sinks_of(world) if sink.leaving]
    held = [slot for sink in sinks for slot in sink.slots]
    assert held
    request = world.prefill("c", text("c", 60))
    assert not {slot for copy in world.plan().stores for slot in copy.slots} & set(held)
    world.finish(request)
    for sink in sinks:
        world.answer(sink)
    world.drain()


def test_what_came_up_from_below_need_not_sink_again() -> None:
    world = World(below=BelowConfig(through=frozenset({"all"})), min_fetch_tokens=4)
    world.serve("r", A)
    world.drain()
    kept = dict(world.below)
    world.reset()
    world.drain()
    world.below = kept
    world.weights -= 1
    request = world.add("again", A)
    for _ in range(4):
        world.manager.reserve(world.match(request))
        world.step()
    assert world.manager.metrics.fetched_blocks == 7
    sunk = world.manager.metrics.sunk_blocks
    world.finish(request)
    world.drain()
    assert world.manager.metrics.sunk_blocks == sunk


def test_what_a_tier_refuses_is_counted_and_not_tried_again() -> None:
    world = world_of(through=("all",))
    store(world, "r", A)
    for sink in sinks_of(world):
        world.answer(sink, misses=range(8))
    assert world.manager.metrics.not_sunk == {NotSunk.FAILED: 8}
    world.drain()
    assert world.manager.metrics.sunk_blocks == 0


def test_what_is_evicted_before_its_turn_is_counted() -> None:
    world = world_of(through=("all",), host_blocks=8)
    store(world, "a", A)
    (first,) = sinks_of(world)
    store(world, "b", B)
    world.answer(first)
    world.drain()
    metrics = world.manager.metrics
    assert metrics.not_sunk[NotSunk.EVICTED] == metrics.evicted_blocks == 7, "all but the one that was sinking"


def test_what_a_tier_refused_is_not_counted_again_when_it_is_evicted() -> None:
    world = world_of(through=("all",), host_blocks=8)
    store(world, "a", A)
    while sinks := sinks_of(world):
        world.answer(sinks[0], misses=range(0, 8, 2))
        world.plan()
    assert world.manager.metrics.not_sunk == {NotSunk.FAILED: 8}
    world.serve("b", B)
    assert world.manager.metrics.evicted_blocks == counted(world) - 8 == 8


def test_what_found_the_queue_full_is_not_counted_again_when_it_is_evicted() -> None:
    world = world_of(through=("all",), host_blocks=8, device_blocks=64)
    for name in "abcd":
        store(world, name, text(name, 32))
    world.drain()
    world.serve("e", text("e", 32))
    assert world.manager.metrics.not_sunk[NotSunk.QUEUE_FULL] > 0
    assert world.manager.metrics.stored_blocks == counted(world)


@given(
    host_blocks=st.integers(1, 12),
    script=st.lists(st.sampled_from(["store", "answer", "refuse", "reset", "copy"]), max_size=20),
)
def test_written_through_every_block_sinks_or_is_counted_once(host_blocks: int, script: list[str]) -> None:
    world = world_of(through=("all",), host_blocks=host_blocks)
    for number, action in enumerate(script):
        if action == "store":
            world.finish(world.prefill(str(number), text(str(number), 4 + 4 * (number % 5))))
        elif action == "reset":
            world.reset()
        elif action == "copy":
            world.plan()
            world.drain_copies()
        elif world.errands:
            world.answer(next(iter(world.errands.values())), misses=range(number) if action == "refuse" else ())
    world.drain()
    assert counted(world) == world.manager.metrics.stored_blocks


def test_a_slot_whose_turn_comes_with_other_content_sinks_once() -> None:
    world = world_of(through=("all",), host_blocks=8)
    store(world, "a", A)
    store(world, "b", B)
    names = [name for sink in sinks_of(world) for name in sink.names]
    while sinks := sinks_of(world):
        world.answer(sinks[0])
        names += [name for sink in world.plan().errands if isinstance(sink, Sink) for name in sink.names]
    assert len(names) == len(set(names)) == world.manager.metrics.sunk_blocks == 2, "what was evicted fills the queue"


def test_the_queue_is_bounded_by_the_host() -> None:
    world = world_of(through=("all",), host_blocks=8)
    for name in "abcd":
        store(world, name, text(name, 32))
    assert world.manager.gauges().sink_queue_blocks <= 8
    assert world.manager.metrics.not_sunk[NotSunk.QUEUE_FULL] > 0


def test_a_reset_forgets_what_waits_and_empties_the_tiers() -> None:
    """F9."""
    world = world_of(through=("all",), host_blocks=16)
    store(world, "r", A)
    (sinking,) = sinks_of(world)
    world.reset()
    assert world.manager.metrics.not_sunk == {NotSunk.RESET: 6}
    assert world.manager.gauges().sink_queue_blocks == 0
    world.answer(sinking)
    world.drain()
    assert not world.below
    assert world.manager.metrics.not_sunk == {NotSunk.RESET: 8}
    world.serve("after", A)
    world.drain()
    assert len(world.below) == 8


@pytest.mark.parametrize("size", [1, 3])
def test_sinks_are_cut(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks_module, "SINK_BLOCKS_MAX", size)
    world = world_of(through=("all",))
    store(world, "r", A)
    assert [len(sink.slots) for sink in sinks_of(world)] == ([1] * 8 if size == 1 else [3, 3, 2])


# ---------------------------------------------------------------------- at the end of all


def drain_all(world: World) -> list[Sink]:
    """Let everything leave the host; return what sank, in order."""
    world.index.below.drain()
    sunk: list[Sink] = []
    while True:
        world.plan()
        sinks = sinks_of(world)
        if not sinks:
            return sunk
        for sink in sinks:
            world.answer(sink)
        sunk += sinks


def test_at_the_end_everything_leaves_that_tiers_written_on_evict_should_have() -> None:
    world = world_of(on_evict=("all",), host_blocks=64)
    store(world, "a", A)
    store(world, "b", B)
    assert not sinks_of(world)
    below = world.index.below
    sunk = drain_all(world)
    assert below.sinking_blocks == 0
    assert all(sink.leaving and len(sink.slots) <= 4 for sink in sunk), "a few at a time"
    names = [name for sink in sunk for name in sink.names]
    assert names == [(0, key) for tokens in (B, A) for key in keys_of(tokens, 4)], "what was used last comes first"
    assert world.manager.gauges().slots_free == 64


def test_at_the_end_only_what_was_of_use_goes_to_tiers_that_take_nothing_else() -> None:
    world = world_of(on_evict=("second-use",), host_blocks=64)
    store(world, "a", A)
    store(world, "b", B)
    slot = world.index.host.slot_of(0, keys_of(B, 4)[0])
    assert slot is not None
    world.index.below.used([slot])
    assert [name for sink in drain_all(world) for name in sink.names] == [(0, keys_of(B, 4)[0])]
    assert world.manager.gauges().slots_free == 64


def test_at_the_end_what_waits_for_tiers_written_through_sinks_first() -> None:
    world = world_of(through=("all",), on_evict=("all",), host_blocks=16)
    store(world, "a", A)
    assert [len(sink.slots) for sink in sinks_of(world)] == [2]
    below = world.index.below
    assert below.sinking_blocks == 8
    sunk = drain_all(world)
    assert [sink.leaving for sink in sunk] == sorted(sink.leaving for sink in sunk)
    assert sum(len(sink.slots) for sink in sunk) == 16
    assert not world.manager.metrics.not_sunk


def test_at_the_end_tiers_written_through_alone_lose_nothing_and_the_host_keeps_what_it_has() -> None:
    world = world_of(through=("all",), host_blocks=16)
    store(world, "a", A)
    drain_all(world)
    assert world.cached_blocks(A) == list(range(8))
    assert len(world.below) == 8


def test_a_reset_at_the_end_frees_what_was_about_to_leave() -> None:
    world = world_of(on_evict=("all",), host_blocks=64)
    store(world, "a", A)
    world.index.below.drain()
    world.plan()
    assert world.index.below.sinking_blocks == 8
    world.manager.reset()
    sinks = sinks_of(world)
    assert sum(len(sink.slots) for sink in sinks) == 4
    world.drain()
    assert world.manager.gauges().slots_free == 64
    assert world.manager.metrics.not_sunk == {NotSunk.RESET: 8}
