"""F1 to F4: work that was done is not lost, and what is lost is counted."""

from __future__ import annotations

import pytest

from kvtide.core import FullAttention, NotLoaded, NotStored, Report, SlidingWindow
from tests.support import World, text


def test_f1_a_prompt_that_is_computed_and_finished_in_one_step_is_stored_to_its_last_block() -> None:
    world = World()
    request = world.begin("r", text("a", 32))
    world.plan()  # the plan of the step that computes everything is made before
    world.compute(request)
    world.finish(request)
    world.drain()
    assert world.cached_blocks(text("a", 32)) == list(range(8))


def test_f1_the_block_that_the_last_decoded_token_fills_is_stored() -> None:
    world = World()
    request = world.prefill("r", text("a", 31))
    world.step()
    world.append(request, text("a", 1, start=31))
    world.plan()
    world.compute(request)
    world.finish(request)
    world.drain()
    assert world.cached_blocks(text("a", 32)) == list(range(8))


def test_f1_an_aborted_request_leaves_its_computed_blocks_on_the_host() -> None:
    world = World()
    world.finish(world.prefill("r", text("a", 100), 50))
    world.drain()
    assert world.cached_blocks(text("a", 100)) == list(range(12))


def test_f2_a_block_that_is_being_stored_is_not_stored_again_for_a_second_request() -> None:
    world = World()
    first, second = world.add("first", text("a", 16)), world.add("second", text("a", 20))
    world.admit(first)
    world.compute(first)
    plan = world.plan()
    assert [len(copy.blocks) for copy in plan.stores] == [4]
    world.admit(second)
    world.compute(second)
    again = world.plan()
    assert [len(copy.blocks) for copy in again.stores] == [1], "only what the second request added"


def test_f2_two_device_blocks_with_the_same_content_are_stored_once() -> None:
    world = World()
    first, second = world.add("first", text("a", 16)), world.add("second", text("a", 16))
    world.admit(first)
    world.admit(second)  # before the first has computed anything: no device hit
    world.compute(first)
    world.compute(second)
    assert set(first.blocks[0]).isdisjoint(second.blocks[0])
    assert sum(len(copy.blocks) for copy in world.plan().stores) == 4


def test_f2_a_failed_store_is_taken_over_by_another_holder_of_the_same_bytes() -> None:
    world = World()
    first, second = world.add("first", text("a", 16)), world.add("second", text("a", 16))
    world.admit(first)
    world.admit(second)
    world.compute(first)
    world.compute(second)
    (store,) = world.plan().stores
    world.finish(first)
    world.run(store, why="the first holder's copy fails")
    # The first holder's blocks are given to someone else; the second holder's are still there.
    taken = world.pool.allocate(world.pool.num_free)
    assert taken is not None
    (again,) = world.plan().stores
    assert set(again.blocks) == set(second.blocks[0])
    world.run(again)
    assert world.cached_blocks(text("a", 16)) == [0, 1, 2, 3]


def test_f2_a_store_that_keeps_failing_is_given_up_and_counted() -> None:
    world = World()
    world.prefill("r", text("a", 16))
    for _ in range(10):
        world.step(fails=lambda _: True)
    assert world.manager.metrics.stores_failed == 3
    assert world.manager.metrics.not_stored == {NotStored.COPY_FAILED: 4}


@pytest.mark.parametrize("policy", ["prefix", "lru"])
def test_f3_holes_that_the_hosts_eviction_made_in_a_running_request_are_filled_when_it_ends(policy: str) -> None:
    world = World(host_blocks=12, device_blocks=64, policy=policy)
    long = world.prefill("long", text("a", 40), 32)
    world.step()
    assert world.cached_blocks(text("a", 40)) == list(range(8))
    world.serve("other", text("b", 24))
    assert world.cached_blocks(text("a", 40)) != list(range(8)), "the other request has evicted some"
    world.compute(long)
    world.finish(long)
    world.drain()
    assert world.cached_blocks(text("a", 40)) == list(range(10))


def test_f3_a_device_hit_on_blocks_that_the_host_has_lost_stores_them_again() -> None:
    world = World(host_blocks=8, device_blocks=64)
    world.serve("a", text("a", 16))
    world.serve("b", text("b", 32))
    assert world.cached_blocks(text("a", 16)) == []
    world.serve("again", text("a", 17))
    assert world.cached_blocks(text("a", 16)) == [0, 1, 2, 3]


def test_f4_every_block_that_is_not_stored_is_counted_under_a_reason() -> None:
    world = World(host_blocks=3, device_blocks=64)
    world.serve("r", text("a", 40))
    stored = len(world.cached_blocks(text("a", 40)))
    assert stored == 3
    assert world.manager.metrics.not_stored == {NotStored.HOST_FULL: 10 - stored}


def test_f4_blocks_that_waited_for_the_pin_budget_and_were_reused_meanwhile_are_counted() -> None:
    world = World(pin_budget=2)
    world.finish(world.prefill("r", text("a", 32)))
    world.plan()
    world.fill_device()
    world.drain()
    metrics = world.manager.metrics
    assert metrics.stored_blocks + sum(metrics.not_stored.values()) == 8
    assert metrics.not_stored[NotStored.EVICTED_FROM_DEVICE] > 0


def test_f4_stores_keep_up_with_whole_steps_of_new_tokens_that_are_reported_a_step_later() -> None:
    world = World(device_blocks=64, host_blocks=400, step_tokens=64)  # seen on a GPU: 16 blocks a step, 16 pinned
    for number in range(20):
        before = list(world.pending.values())
        world.plan()
        request = world.prefill(f"r{number}", text(f"document {number}", 64))
        for pending in before:  # those of this step go on while it computes
            world.run(pending.copy)
        world.finish(request)
    world.drain()
    assert world.manager.metrics.not_stored == {}


def test_f4_the_first_request_waits_for_host_memory_that_is_reported_just_after_its_end() -> None:
    world = World(slots_ready=0)
    world.finish(world.prefill("first", text("a", 32)))
    world.report(Report(0, slots_ready=64))  # vLLM hands reports over after the ends of requests
    world.drain()
    assert world.cached_blocks(text("a", 32)) == list(range(8))
    assert world.manager.metrics.not_stored == {}


def test_f4_a_first_request_waits_for_host_memory_that_comes_with_the_end_of_its_own_first_stores() -> None:
    world = World(slots_ready=3)  # as with `packing=auto`, which decides by the first stores; seen on a GPU
    world.finish(world.prefill("first", text("a", 32)))
    (first,) = world.plan().stores
    for _ in range(3):
        assert not world.plan().stores
    world.run(first)
    world.report(Report(0, slots_ready=64))
    world.drain()
    assert world.cached_blocks(text("a", 32)) == list(range(8))
    assert world.manager.metrics.not_stored == {}


def test_f4_host_memory_that_does_not_come_is_waited_for_once_and_what_it_costs_is_counted() -> None:
    world = World(slots_ready=3)
    world.finish(world.prefill("first", text("a", 32)))
    world.drain()
    assert world.cached_blocks(text("a", 32)) == [0, 1, 2]
    assert world.manager.metrics.not_stored == {NotStored.HOST_FULL: 5}


def test_f4_window_blocks_that_left_before_they_could_be_stored_are_counted() -> None:
    world = World(groups=(FullAttention(4), SlidingWindow(4, 9)), pin_budget=1)
    request = world.prefill("r", text("a", 32))
    world.slide(request)
    world.finish(request)
    world.drain()
    metrics = world.manager.metrics
    assert metrics.stored_blocks + sum(metrics.not_stored.values()) == 16
    assert metrics.not_stored[NotStored.OUT_OF_WINDOW] > 0


def test_f4_every_token_that_could_not_be_loaded_is_counted_under_a_reason() -> None:
    world = World(min_load_tokens=8)
    world.serve("r", text("a", 17))
    reasons = world.manager.metrics.not_loaded
    assert reasons == {NotLoaded.NOT_CACHED: 16}
    world.fill_device()
    world.serve("same", text("a", 16))
    assert reasons[NotLoaded.LAST_TOKEN] == 4
    world.fill_device()
    world.serve("short", text("a", 6))
    assert reasons[NotLoaded.BELOW_BREAK_EVEN] == 4


def test_f4_a_hit_on_a_block_that_is_still_being_stored_is_counted_as_such() -> None:
    world = World()
    world.prefill("r", text("a", 16))
    world.plan()
    world.pool.reset()  # the device forgets, the store goes on
    world.begin("late", text("a", 17))
    assert world.manager.metrics.not_loaded[NotLoaded.STILL_STORING] == 16
