"""F5, F6, F8, F9 and F10: what a request gets is exactly what was computed for its tokens."""

from __future__ import annotations

import pytest

from kvtide.core import (
    BelowConfig,
    Fetch,
    FullAttention,
    Group,
    Lookup,
    NotStored,
    Plan,
    Report,
    Sink,
    SlidingWindow,
    StateSpace,
)
from tests.support import NoRoomError, World, text


def test_f5_blocks_of_a_preempted_request_are_not_reused_while_a_store_reads_them() -> None:
    world = World(device_blocks=8, pin_budget=8)
    victim = world.prefill("victim", text("a", 16))
    (store,) = world.plan().stores
    world.preempt(victim)
    other = world.begin("other", text("b", 32))
    with pytest.raises(NoRoomError):
        world.compute(other)  # needs all 8 blocks, 4 of which are still being read
    world.run(store)
    world.compute(other)
    world.check_visible(text("a", 16))


def test_f5_a_preempted_request_is_stored_and_loaded_back() -> None:
    world = World(device_blocks=8, pin_budget=8)
    victim = world.prefill("victim", text("a", 20), 18)
    world.preempt(victim)
    world.step()
    world.serve("other", text("b", 32))
    assert world.admit(victim)
    world.step()
    assert victim.computed == 16
    world.compute(victim)


def test_f5_what_a_preempted_request_computes_again_is_stored_again() -> None:
    world = World(host_blocks=5, device_blocks=64)
    victim = world.prefill("victim", text("a", 20))
    world.step()
    world.preempt(victim)
    world.serve("other", text("b", 20))  # evicts it all from the host
    world.fill_device()
    assert world.cached_blocks(text("a", 20)) == []
    world.admit(victim)
    world.compute(victim)
    world.step()
    assert world.cached_blocks(text("a", 20)) == [0, 1, 2, 3, 4]


def filled(plan: Plan) -> dict[int, bool]:
    """Return of each device block that is stored whether earlier steps have filled it, as the plan says."""
    return {block: store.filled for store in plan.stores for block in store.blocks}


def test_f6_blocks_that_are_found_by_key_wait_for_the_step_of_the_plan() -> None:
    """vLLM gives a block its key when it schedules the step that fills it."""
    world = World()
    victim = world.prefill("victim", text("a", 16))
    blocks = list(victim.blocks[0])
    world.preempt(victim)
    assert filled(world.plan()) == dict.fromkeys(blocks, False)


@pytest.mark.parametrize("when", ["running", "finished"])
@pytest.mark.parametrize("other", [SlidingWindow(4, 8), StateSpace(4)])
def test_f6_blocks_of_windows_and_states_wait_for_the_step_of_the_plan(when: str, other: Group) -> None:
    """Engines may find these by key, as a block that somebody else's step is going to fill."""
    world = World(groups=(FullAttention(4), other))
    request = world.prefill("r", text("a", 8))
    full, others = (list(table) for table in request.blocks)
    if when == "finished":
        world.finish(request)
    assert filled(world.plan()) == dict.fromkeys(full, True) | dict.fromkeys(others, False)


def test_f8_a_load_that_failed_is_not_served_as_loaded() -> None:
    world = World()
    world.serve("r", text("a", 17))
    world.fill_device()
    request = world.add("again", text("a", 17))
    assert world.admit(request)
    outcome = world.step(fails=lambda _: True)
    assert outcome.failed == ("again",)
    assert outcome.loaded == ()
    assert not world.admit(request), "it is computed now, not loaded once more"
    world.compute(request)
    world.finish(request)
    world.drain()


def test_f8_a_store_that_failed_is_not_visible() -> None:
    world = World()
    world.prefill("r", text("a", 16))
    (store,) = world.plan().stores
    world.run(store, why="disk on fire")
    assert world.cached_blocks(text("a", 16)) == []


def test_f9_a_reset_while_copies_run_leaves_nothing_of_the_old_weights() -> None:
    world = World()
    world.serve("old", text("a", 17))
    world.fill_device()
    loading, running = world.add("loading", text("a", 17)), world.add("running", text("b", 16))
    world.admit(loading)
    world.admit(running)
    world.compute(running, 8)
    plan = world.plan()
    assert plan.loads
    assert plan.stores
    world.reset()
    outcome = world.step()
    assert outcome.failed == ("loading",)
    assert world.manager.gauges().slots_cached == 0
    world.compute(running)  # on top of old KV: must not be stored
    world.finish(running)
    world.drain()
    assert world.manager.gauges().slots_cached == 0
    assert world.manager.metrics.not_stored[NotStored.RESET] == 2 + 4
    world.serve("new", text("a", 17))
    assert world.cached_blocks(text("a", 16)) == [0, 1, 2, 3]


def test_f9_a_store_that_no_worker_has_heard_of_never_begins_after_a_reset() -> None:
    world = World()
    world.finish(world.prefill("old", text("a", 16)))
    assert world.manager.gauges().store_pins == 4
    world.reset()
    assert world.manager.gauges().store_pins == 0
    assert world.manager.metrics.not_stored[NotStored.RESET] == 4
    assert not world.plan().stores
    assert not world.manager.busy


def test_f9_a_request_whose_load_a_reset_ended_goes_on_and_is_not_stored() -> None:
    """What it had found on the device, and goes on from, is of the old weights."""
    world = World()
    world.serve("old", text("a", 17))
    request = world.add("r", text("a", 17))
    match = world.manager.match("r", 4, 17)
    world.manager.reserve(match)
    world.place(request, 4, 16)
    assert world.manager.admit("r", match.tokens)
    (load,) = world.plan().loads
    world.manager.reset()
    assert world.manager.report(Report(0, done=(load.id,))).failed == ("r",)
    world.manager.advance("r", 16)
    assert not world.plan().stores
    world.manager.finish("r")
    assert not world.plan().stores
    assert world.manager.metrics.not_stored == {NotStored.RESET: 4}


def test_f9_nothing_of_the_old_weights_sinks_behind_the_clear() -> None:
    """What sinks behind the clear is found again, so all of it has to be of the new weights. It is, because

    only what is visible sinks, and the reset has forgotten all that was: what waited to sink, too;
    what is being stored or fetched is abandoned, and never becomes visible; what was to be stored is not begun;
    what is sinking began before the clear, and is found by nobody;
    requests that run hold KV of the old weights, and nothing of theirs is stored.
    """
    below = BelowConfig(through=frozenset({"all"}), on_evict=frozenset({"all"}))
    world = World(below=below, min_fetch_tokens=4, host_blocks=32, pin_budget=4)
    world.serve("below", text("a", 16))
    world.manager.reset(below=False)
    world.pool.reset()
    world.manager.reserve(world.match(world.add("fetching", text("a", 16))))
    world.answer(world.plan().errands[0])
    sinking, running, storing = (world.add(letter, text(letter, 32)) for letter in "bcd")
    for request in (sinking, running, storing):
        world.admit(request)
    world.compute(sinking)
    for _ in range(4):
        world.plan()
        world.drain_copies()
    world.compute(running, 8)
    world.compute(storing)
    world.plan()
    world.finish(storing)
    gauges = world.manager.gauges()
    assert {type(errand) for errand in world.errands.values()} == {Lookup, Fetch, Sink}
    assert gauges.sink_queue_blocks
    assert gauges.backlog_blocks
    assert world.pending

    world.reset()
    world.step()
    world.compute(running)
    world.finish(running)
    world.drain()
    assert not world.below
    world.serve("after", text("a", 16))
    assert [kv.weights for kv in world.below.values()] == [1] * 4


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_f10_a_block_is_visible_only_when_every_rank_has_it(ranks: int) -> None:
    world = World(ranks=ranks)
    world.prefill("r", text("a", 16))
    (store,) = world.plan().stores
    for rank in range(ranks):
        assert world.cached_blocks(text("a", 16)) == []
        world.run(store, ranks=[rank])
    assert world.cached_blocks(text("a", 16)) == [0, 1, 2, 3]


def test_f10_a_store_that_failed_on_one_rank_is_not_visible_whatever_the_others_say() -> None:
    world = World(ranks=3)
    world.prefill("r", text("a", 16))
    (store,) = world.plan().stores
    world.run(store, ranks=[1], why="no")
    world.run(store, ranks=[0])
    world.run(store, ranks=[2])
    assert world.cached_blocks(text("a", 16)) == []


def test_f10_a_failed_transfer_keeps_its_pins_until_the_last_rank_has_reported() -> None:
    world = World(ranks=2)
    world.prefill("r", text("a", 16))
    (store,) = world.plan().stores
    world.run(store, ranks=[0], why="no")
    assert world.manager.gauges().store_pins == 4
    world.run(store, ranks=[1])
    assert world.manager.gauges().store_pins == 0


def test_f10_a_request_goes_on_only_when_its_load_is_complete_on_every_rank() -> None:
    world = World(ranks=2, groups=(FullAttention(4), SlidingWindow(4, 6)))
    world.serve("r", text("a", 17))
    world.fill_device()
    world.begin("again", text("a", 17))
    (load,) = world.plan().loads
    assert world.run(load, ranks=[1]).loaded == ()
    assert world.run(load, ranks=[0]).loaded == ("again",)
