"""F11 to F17: whatever happens, nobody waits forever, nothing leaks and nothing dies."""

from __future__ import annotations

import numpy as np
import pytest

from kvtide.copy import DeviceCache, HostArena, Region, ThreadedCopyEngine
from kvtide.core import Copy, FullAttention, Plan, Report, SlidingWindow
from kvtide.worker import Worker
from tests.support import World, text


def test_f11_what_was_offered_is_still_there_when_the_engine_admits_the_request() -> None:
    world = World(host_blocks=4, device_blocks=64)
    world.serve("r", text("a", 16))
    world.fill_device()
    request = world.add("again", text("a", 17))
    match = world.match(request)
    world.manager.reserve(match)
    greedy = world.add("greedy", text("b", 64))  # wants every slot of the host
    world.admit(greedy)
    world.compute(greedy)
    world.finish(greedy)
    world.step()
    assert world.cached_blocks(text("a", 16)) == [0, 1, 2, 3]
    world.place(request, match.device_tokens, match.device_tokens + match.tokens)
    assert world.manager.admit(request.id, match.tokens)
    request.loading = True
    assert world.step().loaded == ("again",)


@pytest.mark.parametrize("ending", ["give_up", "finish", "preempt", "match again"])
def test_f11_a_reservation_ends_when_the_request_is_given_up_or_ends(ending: str) -> None:
    world = World()
    world.serve("r", text("a", 16))
    world.fill_device()
    request = world.add("again", text("a", 17))
    world.manager.reserve(world.match(request))
    assert world.manager.gauges().slots_pinned == 4
    if ending == "give_up":
        world.manager.give_up(request.id)
    elif ending == "finish":
        world.manager.finish(request.id)
    elif ending == "preempt":
        world.manager.preempt(request.id)
    else:
        world.manager.reserve(world.match(request))
        assert world.manager.gauges().slots_pinned == 4, "not twice"
        world.manager.finish(request.id)
    assert world.manager.gauges().slots_pinned == 0


def test_f12_stores_of_a_finished_long_request_leave_room_for_the_next_one() -> None:
    groups = (FullAttention(4), SlidingWindow(4, 9))
    world = World(groups=groups, device_blocks=40, pin_budget=10)
    world.finish(world.prefill("first", text("a", 64)))
    world.plan()  # copies do not end
    assert world.manager.gauges().store_pins <= 10
    assert world.pool.num_free >= 30, "pins are visible in the free count, and bounded"
    second = world.begin("second", text("b", 56))
    world.compute(second)  # 28 blocks: fits beside the pins
    world.finish(second)
    world.drain()
    assert world.pool.num_free == 40


def test_f12_what_the_pin_budget_held_back_is_stored_later_from_the_free_queue() -> None:
    world = World(device_blocks=32, pin_budget=3)
    world.finish(world.prefill("r", text("a", 64)))
    world.drain()
    assert world.cached_blocks(text("a", 64)) == list(range(16))


def test_f13_a_full_host_and_pinned_blocks_cost_hits_but_never_progress() -> None:
    world = World(host_blocks=1, device_blocks=9, pin_budget=1)
    for turn in range(6):
        world.serve(f"r{turn}", text("ab"[turn % 2], 32))
    assert world.pool.num_free == 9


def test_f14_requests_that_share_a_prefix_do_not_wait_for_each_others_loads() -> None:
    world = World(device_blocks=64)
    world.serve("r", text("a", 17))
    world.fill_device()
    crowd = [world.add(f"r{number}", text("a", 17)) for number in range(8)]
    assert all(world.admit(request) for request in crowd)
    plan = world.plan()
    assert len(plan.loads) == 8, "one step for all of them"
    last = plan.loads[-1]
    assert world.run(last).loaded == ("r7",)


def test_f15_a_copy_that_raises_is_a_failed_transfer_and_the_next_one_works() -> None:
    memory = np.arange(64, dtype=np.uint8)
    with HostArena(slots=4, slot_bytes=8) as arena:
        engine = ThreadedCopyEngine(DeviceCache([Region(memory, 8, 8)], blocks=8), arena)
        worker = Worker(0, engine)
        try:
            worker.start(Plan(1, stores=(Copy(1, (99,), (0,)), Copy(2, (5,), (3,)))))
            assert engine.wait([1, 2], timeout_s=30)
            report = worker.poll()
            assert report.done == (2,)
            assert [transfer_id for transfer_id, _ in report.failed] == [1]
            assert arena.memory[3].tolist() == list(range(40, 48))
        finally:
            assert worker.close()


@pytest.mark.parametrize("event", ["finish", "preempt", "reset", "nothing"])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_f16_ending_while_copies_run_leaks_nothing_and_frees_nothing_twice(event: str, mode: str) -> None:
    world = World(mode=mode, device_blocks=16, step_tokens=32)
    world.serve("seed", text("a", 17))
    world.serve("other", text("b", 48))
    loading, running = world.add("loading", text("a", 17)), world.add("running", text("c", 16))
    world.admit(loading)
    world.admit(running)
    world.compute(running)
    world.plan()
    for request in (loading, running):
        if event == "finish":
            world.finish(request)
        elif event == "preempt":
            world.preempt(request)
            request.loading = False
    if event == "reset":
        world.reset()
    world.step()
    for request in list(world.requests.values()):
        world.finish(request)
    world.drain()


def test_f16_reports_about_unknown_transfers_are_ignored_and_counted() -> None:
    world = World(ranks=2)
    world.prefill("r", text("a", 16))
    (store,) = world.plan().stores
    world.manager.report(Report(0, done=(4711,)), Report(7, done=(store.id,)), Report(1, failed=((-1, "?"),)))
    assert world.manager.metrics.reports_unknown == 3
    world.manager.report(Report(0, done=(store.id,)), Report(0, done=(store.id,)))
    assert world.manager.metrics.reports_repeated == 1
    assert world.cached_blocks(text("a", 16)) == [], "rank 1 has not said anything yet"
    world.run(store, ranks=[1])
    world.manager.report(Report(1, done=(store.id,)))
    assert world.manager.metrics.reports_unknown == 4


def test_f16_a_late_report_of_a_load_whose_request_was_started_again_does_not_count_for_the_new_load() -> None:
    world = World(ranks=1, device_blocks=64)
    world.serve("r", text("a", 17))
    world.fill_device()
    request = world.begin("again", text("a", 17))
    (old,) = world.plan().loads
    world.preempt(request)
    request.loading = False
    world.admit(request)
    (new,) = world.plan().loads
    assert set(old.blocks).isdisjoint(new.blocks), "the old load still writes to its blocks"
    assert world.run(old).loaded == ()
    assert world.run(new).loaded == ("again",)


def test_f17_a_failed_transfer_is_an_ordinary_report() -> None:
    world = World(ranks=2)
    world.serve("r", text("a", 17))
    world.fill_device()
    request = world.begin("again", text("a", 17))
    (load,) = world.plan().loads
    world.run(load, ranks=[0], why="lost device")
    assert world.run(load, ranks=[1]).failed == ("again",)
    assert world.manager.metrics.loads_failed == 1
    world.admit(request)
    world.compute(request)
    world.finish(request)
    world.drain()
