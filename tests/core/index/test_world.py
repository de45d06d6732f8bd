"""An engine whose host blocks are elsewhere: the same requests, copies and resets, with bytes compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvtide.core import FullAttention, Group, NotLoaded, NotStored, SlidingWindow, StateSpace
from kvtide.core.index.index import Fill
from kvtide.core.index.look_ups import LATE_S
from kvtide.core.index.remote import LOOK_UP_S
from tests.core.index.bench import config_of
from tests.memory_node import MemoryLink, MemoryNode
from tests.support import FakeRequest, World, text

A, B = text("a", 24), text("b", 24)
FULL: tuple[Group, ...] = (FullAttention(4),)
HYBRID: tuple[Group, ...] = (FullAttention(4), SlidingWindow(4, 7), StateSpace(8))


@pytest.fixture(params=[False, True], ids=["answered at once", "answered a step later"])
def later(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def world_of(later: bool, groups: Sequence[Group] = FULL, host_blocks: int = 64, **options: Any) -> World:
    node = MemoryNode(config_of(groups, host_blocks))
    return World(groups=groups, host_blocks=host_blocks, node=node, later=later, **options)


def link_of(world: World) -> MemoryLink:
    assert world.link is not None
    return world.link


def loading(world: World, name: str = "loading") -> FakeRequest:
    """A request whose load is in flight."""
    world.serve("before", A)
    world.fill_device()
    request = world.add(name, A)
    assert world.admit(request)
    return request


# ---------------------------------------------------------------------- as with a pool of its own


@pytest.mark.parametrize("groups", [FULL, HYBRID])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_computed_is_loaded_with_the_same_bytes(
    later: bool, groups: Sequence[Group], mode: str, ranks: int
) -> None:
    world = world_of(later, groups, 128, mode=mode, ranks=ranks, device_blocks=40)
    world.serve("first", A)
    for number in range(5):  # in lazy mode blocks are stored when they are about to be evicted
        world.serve(f"filler {number}", text(f"filler{number}.", 24))
    world.fill_device()
    world.serve("second", [*A, "x"])
    assert world.manager.metrics.loaded_tokens == len(A)
    assert not world.manager.metrics.not_stored
    world.check()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("host_blocks", [1, 3, 8])
def test_many_texts_in_a_small_host_come_to_rest(later: bool, mode: str, host_blocks: int) -> None:
    world = world_of(later, HYBRID, host_blocks, mode=mode, device_blocks=24)
    for turn in range(3):
        for name in "abcd":
            world.serve(f"{name}{turn}", text(name, 24), chunk=8)
    world.fill_device()
    world.serve("again", A)


def test_a_lazy_engine_rests_at_a_full_node_and_tries_again_when_it_has_computed_something(later: bool) -> None:
    world = world_of(later, host_blocks=8, mode="lazy", device_blocks=16, step_tokens=32)
    taken = world.host_pool.take(8)  # by others

    def compute(name: str) -> None:
        world.finish(world.prefill(name, text(name, 32)))
        for _ in range(20):
            world.step(idle=True)
            if not world.manager.busy:
                return
        raise AssertionError("it does not come to rest")

    compute("a")
    compute("b")
    assert world.index.fill().cached == 0
    world.host_pool.free(taken)
    compute("c")
    assert world.index.fill().cached == 8


@pytest.mark.parametrize("pin_budget", [1, 3])
def test_stores_stay_within_their_budget_while_answers_are_awaited(later: bool, pin_budget: int) -> None:
    world = world_of(later, pin_budget=pin_budget)
    requests = [world.add(name, text(name, 16)) for name in "ab"]
    for request in requests:
        world.admit(request)
        world.compute(request)
    for _ in range(4):
        world.plan()
        world.check()
        world.drain_copies()
    for request in requests:
        world.finish(request)
    world.drain()
    assert world.cached_blocks(requests[0].tokens) == [0, 1, 2, 3]
    assert world.manager._stores._asked_blocks == world.manager._stores._asks == 0


def test_a_store_that_fails_is_tried_again_and_given_up_in_the_end(later: bool) -> None:
    world = world_of(later)
    request = world.prefill("r", A[:8])
    for _ in range(12):
        world.step(fails=lambda _: True)
    world.finish(request)
    assert world.manager.metrics.not_stored == {NotStored.COPY_FAILED: 2}
    world.drain()


@pytest.mark.parametrize("missing", [0, 2, 5])
def test_f10_of_blocks_that_were_reserved_together_none_is_kept_where_one_rank_has_no_place_for_one(
    later: bool, missing: int
) -> None:
    world = world_of(later, ranks=2)
    request = world.prefill("r", A)
    while not world.pending:
        world.plan()
    (copy,) = (pending.copy for pending in world.pending.values())
    assert len(copy.slots) == 6
    world.run(copy, ranks=[1], not_kept=copy.slots[missing : missing + 1])
    world.run(copy, ranks=[0])
    assert world.cached_blocks(A) == []
    assert world.manager.metrics.not_stored == {NotStored.UNPACKED_FULL: 6}
    assert world.manager.metrics.stored_blocks == 0
    world.plan()
    assert world.index.fill() == Fill(64, 64, 0, 0)
    world.finish(request)
    world.drain()


def test_a_load_that_fails_is_computed(later: bool) -> None:
    world = world_of(later)
    request = loading(world)
    world.step(fails=lambda _: True)
    assert not request.placed
    assert not world.admit(request)
    world.compute(request)
    world.finish(request)
    world.drain()


@pytest.mark.parametrize("accept", [1, 4, 7, 16])
def test_a_part_of_an_offer_is_loaded_and_its_lease_lasts_as_long(later: bool, accept: int) -> None:
    world = world_of(later, host_blocks=8)
    world.serve("before", A)
    world.fill_device()
    request = world.add("r", A)
    assert world.admit(request, accept)
    (copy,) = world.plan().loads
    for name in "xy":
        other = world.prefill(name, text(name, 24))
        for _ in range(3):
            for store in world.plan().stores:
                assert not set(store.slots) & set(copy.slots), "what is being read is not written (I11)"
                world.run(store)
        world.finish(other)
    world.run(copy)
    assert request.computed == accept
    world.compute(request)
    world.finish(request)
    world.drain()


def test_a_part_that_cannot_be_resumed_from_is_computed(later: bool) -> None:
    world = world_of(later, HYBRID)
    world.serve("before", A)
    world.fill_device()
    request = world.add("r", [*A, "x"])
    assert world.admit(request, 5)
    world.step()
    assert not request.placed
    world.finish(request)
    world.drain()


def test_a_preempted_request_is_stored_from_wherever_the_device_has_it(later: bool) -> None:
    world = world_of(later)
    request = world.prefill("r", A)
    world.preempt(request)
    world.drain()
    world.fill_device()
    assert world.admit(request)
    world.step()
    world.compute(request)
    world.finish(request)
    world.drain()


def test_a_request_that_begins_again_is_not_confused_by_answers_of_before(later: bool) -> None:
    world = world_of(later)
    request = world.prefill("r", A)
    world.plan()
    world.preempt(request)
    world.admit(request)
    world.compute(request)
    for _ in range(3):
        world.step()
    assert world.cached_blocks(A) == list(range(6))
    world.finish(request)
    world.drain()
    assert not world.manager._requests


def test_what_the_device_gave_away_before_slots_were_granted_is_counted() -> None:
    world = world_of(later=True)
    world.finish(world.prefill("r", A))
    world.plan()
    for block in world.pool.allocate(world.pool.num_free) or []:
        world.pool.free([block])
    world.drain()
    assert world.manager.metrics.not_stored == {NotStored.EVICTED_FROM_DEVICE: 6}
    assert world.index.fill().cached == 0


def test_what_is_granted_in_a_later_step_is_copied_after_the_compute_of_that_step() -> None:
    world = world_of(later=True)
    world.prefill("r", A[:4])
    world.plan()
    (copy,) = world.plan().stores
    assert not copy.filled, "its block may have been given away and back, and have its key before its content"


def test_after_a_reset_nothing_of_before_is_loaded_or_stored(later: bool) -> None:
    world = world_of(later)
    old = loading(world)
    running = world.prefill("running", B)
    world.plan()
    world.reset()
    for _ in range(3):
        world.step()
    assert not old.placed
    for request in (old, running):
        world.preempt(request)
        assert not world.admit(request)
        world.compute(request)
        world.finish(request)
    world.drain()
    world.fill_device()
    world.serve("after", A)
    assert world.manager.metrics.loaded_tokens == len(A) - 4


def test_after_a_stop_nothing_is_stored_and_what_is_in_flight_ends(later: bool) -> None:
    world = world_of(later)
    request = loading(world)
    world.plan()
    other = world.prefill("other", B)
    world.plan()
    world.manager.stop()
    world.weights += 1
    world.drain_copies()
    world.finish(other)
    for _ in range(3):
        assert not world.plan().stores
        world.report()
    world.finish(request)
    world.drain()


# ---------------------------------------------------------------------- the node goes and comes


def test_without_a_node_everything_is_computed_and_counted(later: bool) -> None:
    world = world_of(later)
    link_of(world).go_away()
    world.serve("first", A)
    world.fill_device()
    world.serve("second", A)
    metrics = world.manager.metrics
    assert metrics.not_loaded == {NotLoaded.NODE_AWAY: 2 * len(A)}
    assert metrics.not_stored == {NotStored.NODE_AWAY: 12}
    assert link_of(world).waited_s == 0, "nobody waits for a node that is not there"
    link_of(world).come()
    world.serve("third", A)
    world.fill_device()
    world.serve("fourth", A)
    assert metrics.loaded_tokens == len(A) - 4


@pytest.mark.parametrize("comes_back", [True, False])
def test_copies_under_way_end_well_when_the_node_dies(later: bool, comes_back: bool) -> None:
    world = world_of(later)
    request = loading(world)
    other = world.prefill("other", B)
    for _ in range(2):
        world.plan()
    assert {pending.is_load for pending in world.pending.values()} == {True, False}
    if comes_back:
        link_of(world).node.restart()
    else:
        link_of(world).go_away()
    world.step()
    assert request.placed, "the bytes are still there"
    assert world.manager.metrics.not_stored == {NotStored.NODE_AWAY: 6}
    world.compute(request)
    for each in (request, other):
        world.finish(each)
    world.drain()


def test_copies_that_have_not_begun_do_not_begin_in_another_life(later: bool) -> None:
    world = world_of(later)
    request = loading(world)
    other = world.prefill("other", B)
    world.plan()
    world.match(world.add("third", B))  # takes the answer: stores are planned now
    link_of(world).node.restart()
    stores = world.manager._stores._planned
    assert bool(stores)
    begun = world.plan()
    assert not begun.stores
    assert not begun.loads
    world.report()
    world.drain_copies()
    world.finish(request)
    world.finish(other)
    world.finish(world.requests["third"])
    world.drain()
    world.fill_device()
    world.serve("after", B)
    world.check_visible(B)


def test_a_reservation_of_a_life_that_is_over_is_no_load(later: bool) -> None:
    world = world_of(later)
    world.serve("before", A)
    world.fill_device()
    request = world.add("r", A)
    assert world.admit(request)
    link_of(world).node.restart()
    assert not world.plan().loads
    world.report()
    assert not request.placed, "it is computed"
    assert not world.admit(request)
    world.compute(request)
    world.finish(request)
    world.drain()


def test_a_node_that_does_not_answer_costs_no_progress() -> None:
    world = world_of(later=True)
    link = link_of(world)
    link.hangs = True
    request = world.add("r", A)
    match = world.match(request)
    assert match.waits
    world.manager.reserve(match)
    world.manager.passed(LATE_S)
    match = world.match(request)
    assert (match.waits, match.missed) == (False, {NotLoaded.NODE_LATE: len(A)})
    assert link.waited_s == LOOK_UP_S, "it is waited for once"
    world.manager.reserve(match)
    world.place(request, 0, 0)
    world.manager.admit(request.id, 0)
    world.compute(request)
    for _ in range(3):
        world.step()
    world.finish(request)
    assert world.manager.busy
    world.step()
    for _ in range(11):
        world.manager.passed(1.0)
    assert world.manager.metrics.not_stored == {NotStored.NODE_LATE: 6}
    assert world.manager._stores._asks == world.manager._stores._asked_blocks == 0
    link.hangs = False
    link.let_in()
    world.plan()
    world.drain()
    assert world.index.fill().free == 64, "what is granted then is given back"


# ---------------------------------------------------------------------- several engines


def pair(later: bool, **options: Any) -> tuple[World, World]:
    node = MemoryNode(config_of(FULL, 64))
    first, second = (World(node=node, later=later, **options) for _ in range(2))
    return first, second


def test_what_one_engine_stored_another_one_loads(later: bool) -> None:
    first, second = pair(later)
    first.serve("r", A)
    second.serve("r", [*A, "x"])
    assert second.manager.metrics.loaded_tokens == len(A)


def test_an_engine_at_rest_has_said_all_that_it_had_to_say(later: bool) -> None:
    first, second = pair(later)
    request = first.prefill("r", A)
    first.finish(request)
    while first.manager.busy:
        first.step()
    match = second.match(second.add("r", A))
    second.plan()
    match = second.match(second.requests["r"])
    assert match.tokens == len(A) - 4


def test_of_two_that_compute_the_same_one_stores_it_and_the_other_takes_over(later: bool) -> None:
    first, second = pair(later)
    for world in (first, second):
        world.prefill("r", A)
    for _ in range(3):
        first.plan()
    for _ in range(3):
        second.plan()
    assert first.pending
    assert not second.pending, "the first one writes it (I7)"
    second.finish(second.requests["r"])
    for _ in range(2):
        second.step()
    assert not second.manager.busy
    life = link_of(first).life
    assert life is not None
    link_of(first).go_away()
    link_of(first).node.end(life)  # its processes have exited
    for _ in range(4):
        second.step()
    second.fill_device()
    second.serve("again", [*A, "x"])
    assert second.manager.metrics.loaded_tokens == len(A)
