"""Lazy mode with host blocks elsewhere: asking takes a step, and what is lost by that is counted."""

from __future__ import annotations

from typing import Any

import pytest

from kvtide.core import NotStored, SlidingWindow
from kvtide.core.index.reservations import ASK_S
from kvtide.core.storing.lazy import LOOKAHEAD_STEPS, LazyPlanner
from tests.core.index.test_world import FULL, link_of, world_of
from tests.support import World, text

BLOCKS = 4
"""What is kept clean: three steps of 4 tokens take 3 blocks, and a quarter of the device are 4."""
DIRTY = 16


def lazy(**options: Any) -> World:
    """An engine with a request that runs, and with blocks in its free queue that are all to be stored.

    It says what the device evicts.
    """
    world = world_of(True, **{"mode": "lazy", "device_blocks": 17, "step_tokens": 4, "pin_budget": BLOCKS, **options})
    world.pool.on_evicted = world.manager.evicted
    runs, request = world.add("runs", text("runs", 4)), world.add("r", text("r", DIRTY * 4))
    for each in (runs, request):
        world.admit(each)
        world.compute(each, 1 if each is runs else None)
    world.finish(request)
    return world


def take_all(world: World) -> list[int]:
    """Let somebody have all blocks that the device can give."""
    return world.pool.allocate(world.pool.num_free) or []


def hang(world: World) -> None:
    link_of(world).hangs = True


def answer(world: World) -> None:
    link_of(world).hangs = False
    link_of(world).let_in()


def lost(world: World) -> dict[NotStored, int]:
    return dict(world.manager.metrics.not_stored)


def test_what_slots_are_asked_for_is_not_given_to_anybody_until_the_answer_is_there() -> None:
    world = lazy()
    world.plan()
    assert world.manager.gauges().store_pins == BLOCKS
    taken = take_all(world)
    assert len(taken) == DIRTY - BLOCKS
    (copy,) = world.plan().stores
    assert len(copy.blocks) == BLOCKS
    assert not set(copy.blocks) & set(taken)
    assert copy.filled, "nobody else had them"
    world.pool.free(taken)
    world.drain()
    assert world.index.fill().cached == BLOCKS
    assert lost(world) == {NotStored.EVICTED_FROM_DEVICE: DIRTY - BLOCKS}


def test_i13_nobody_waits_for_a_node_that_does_not_answer_within_a_step() -> None:
    world = lazy()
    hang(world)
    world.plan()
    assert world.pool.num_free == DIRTY - BLOCKS
    for tokens in range(1, 5):
        world.plan()
        assert world.manager.gauges().store_pins == 0
        assert world.pool.num_free == DIRTY
        world.compute(world.requests["runs"], tokens)  # all may be tried again, but what was asked for is not


def test_f4_what_the_device_takes_while_the_node_is_silent_is_counted_once_whatever_it_answers_then() -> None:
    world = lazy()
    hang(world)
    world.plan()
    world.plan()
    taken = take_all(world)
    assert lost(world) == {NotStored.EVICTED_FROM_DEVICE: DIRTY - BLOCKS}, "of the others nobody knows yet"
    answer(world)
    world.pool.free(taken)
    world.drain()
    assert lost(world) == {NotStored.EVICTED_FROM_DEVICE: DIRTY}


def test_f4_what_the_device_takes_before_a_node_goes_away_is_counted_once() -> None:
    world = lazy()
    hang(world)
    world.plan()
    world.plan()
    take_all(world)
    link_of(world).go_away()
    world.plan()
    assert lost(world) == {NotStored.EVICTED_FROM_DEVICE: DIRTY - BLOCKS, NotStored.NODE_AWAY: BLOCKS}


def test_f4_what_the_device_takes_while_a_node_is_left_is_counted_as_late() -> None:
    world = lazy()
    hang(world)
    world.plan()
    world.plan()
    take_all(world)
    for _ in range(int(ASK_S) + 1):
        world.manager.passed(1.0)
    assert lost(world)[NotStored.NODE_LATE] == BLOCKS


def test_f4_without_a_node_what_the_device_takes_is_lost_because_of_that() -> None:
    world = lazy()
    link_of(world).go_away()
    world.plan()
    world.plan()
    take_all(world)
    assert lost(world) == {NotStored.NODE_AWAY: BLOCKS, NotStored.EVICTED_FROM_DEVICE: DIRTY - BLOCKS}


def test_f4_what_a_full_node_refuses_is_lost_because_of_that_and_not_before_the_device_takes_it() -> None:
    world = lazy(host_blocks=8)
    world.host_pool.take(8)  # by others
    for _ in range(3):
        world.plan()
    assert lost(world) == {}
    take_all(world)
    assert lost(world)[NotStored.HOST_FULL] == BLOCKS
    world.manager.reset()


def test_f13_what_a_node_has_refused_is_not_kept_from_the_device_each_time_that_it_is_asked_again() -> None:
    """A request that waits for the last block would be started again for ever: seed 950481 with a node."""
    world = lazy(host_blocks=8)
    world.host_pool.take(8)  # by others
    pins = []
    for tokens in range(2, 5):
        world.plan()
        pins.append(world.manager.gauges().store_pins)
        world.compute(world.requests["runs"], tokens)
    assert pins == [BLOCKS, 0, 0]
    world.manager.reset()


def test_f13_what_a_node_has_already_is_not_kept_from_the_device_each_time_that_it_is_asked() -> None:
    """The same, where another engine has stored all and nothing is remembered: seed 5008277 with a node."""
    world = lazy()
    other = World(node=link_of(world).node)
    other.serve("r", text("r", DIRTY * 4))
    pins = []
    for tokens in range(2, 5):
        world.plan()
        pins.append(world.manager.gauges().store_pins)
        world.compute(world.requests["runs"], tokens)
    assert pins == [BLOCKS, 0, 0]


def test_what_the_node_has_already_is_not_lost_when_the_device_takes_it() -> None:
    world = lazy()
    other = World(node=link_of(world).node)
    other.serve("r", text("r", DIRTY * 4))
    for _ in range(3):
        world.plan()
    assert not world.pending, "another engine has stored it"
    world.pool.allocate(BLOCKS)
    assert lost(world) == {}


@pytest.mark.parametrize(("later", "steps"), [(False, LOOKAHEAD_STEPS), (True, LOOKAHEAD_STEPS + 1)])
def test_as_asking_takes_a_step_so_many_more_blocks_are_kept_clean(later: bool, steps: int) -> None:
    options: dict[str, Any] = {"mode": "lazy", "device_blocks": 100, "step_tokens": 64}
    world = world_of(True, (*FULL, SlidingWindow(4, 9)), 200, **options) if later else World(groups=FULL, **options)
    planner = world.manager._planner
    assert isinstance(planner, LazyPlanner)
    assert planner._target == min(100, steps * 16 * len(world.groups))
