"""A rank cannot copy any more: nothing is begun, what was begun ends, and what is not stored is counted (I6, I8)."""

from __future__ import annotations

import pytest

from kvtide.core import NotStored
from tests.support import World, text

A, B = text("a", 16), text("b", 16)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_after_a_stop_nothing_is_stored_and_the_engine_rests(mode: str) -> None:
    world = World(mode=mode)
    world.manager.stop()
    world.serve("r", A)
    plan = world.plan()
    assert not plan.stores
    assert not world.manager.busy


def test_f4_what_is_computed_after_a_stop_is_counted_and_does_not_wait() -> None:
    world = World()
    world.manager.stop()
    world.serve("r", A)
    assert world.manager.metrics.not_stored == {NotStored.STOPPED: 4}
    assert world.manager.gauges().backlog_blocks == 0


def test_a_store_that_is_under_way_at_a_stop_is_still_settled() -> None:
    world = World()
    world.finish(world.prefill("r", A))
    (copy,) = world.plan().stores
    world.manager.stop()
    assert world.manager.busy
    world.run(copy)
    world.drain()
    assert world.cached_blocks(A) == []
    assert world.manager.metrics.not_stored == {NotStored.RESET: 4}
