"""The façade: one request from beginning to end, wrong calls, gauges, idleness."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtide.core import (
    BelowConfig,
    FullAttention,
    Gauges,
    Geometry,
    Group,
    OffloadConfig,
    OffloadManager,
    Report,
    SlidingWindow,
)
from kvtide.engine import BlockPool
from kvtide.errors import ProtocolError
from tests.support import FakeRequest, NoRoomError, World, text

A = text("a", 33)
MODES = ["eager", "lazy"]


# ---------------------------------------------------------------------- the way of a request


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("groups", [(FullAttention(4),), (FullAttention(8), SlidingWindow(4, 10))])
def test_a_conversation_comes_back_after_the_device_has_forgotten_it(
    mode: str, groups: tuple[Group, ...], ranks: int
) -> None:
    world = World(mode=mode, groups=groups, ranks=ranks, device_blocks=24, host_blocks=200, pin_budget=24)
    world.serve("turn 1", A)
    for number in range(4):
        world.serve(f"other {number}", text(f"other{number}.", 33))
    world.serve("turn 2", A + text("more", 8))
    assert world.manager.metrics.loaded_tokens == 32
    assert world.manager.metrics.requests == 6
    world.check()


@pytest.mark.parametrize("mode", MODES)
def test_a_host_that_is_much_too_small_costs_hits_and_nothing_else(mode: str) -> None:
    world = World(mode=mode, host_blocks=1)
    for number in range(3):
        for name in "abc":
            world.serve(f"{name}{number}", text(name, 20 + 5 * number))
    assert world.manager.gauges().slots_cached <= 1


def test_plans_are_numbered() -> None:
    world = World()
    assert [world.plan().step for _ in range(3)] == [1, 2, 3]


def test_the_keys_and_blocks_of_a_request_are_read_live() -> None:
    world = World()
    request = world.prefill("r", text("a", 4))
    world.append(request, text("a", 12, start=4))
    world.compute(request)
    world.step()
    assert world.cached_blocks(text("a", 16)) == [0, 1, 2, 3]


def test_preemptions_are_counted_and_starting_again_after_a_failed_load_is_none() -> None:
    world = World()
    world.serve("first", A)
    world.fill_device()
    request = world.add("r", A)
    assert world.admit(request)
    world.step(fails=lambda _: True)  # the engine starts it again
    assert world.manager.metrics.preemptions == 0
    for times in (1, 2):
        world.admit(request)
        world.compute(request, 1)
        world.preempt(request)
        assert world.manager.metrics.preemptions == times
    other = world.begin("other", A)
    world.preempt(other)
    assert world.manager.metrics.preemptions == 3, "also one that has computed nothing"


def test_a_request_that_does_not_search_does_not_wait() -> None:
    world = World()
    world.add("r", A)
    assert not world.manager.waits("r")


def test_a_request_id_can_be_used_again_after_the_end() -> None:
    world = World()
    world.serve("r", A)
    world.serve("r", A)
    assert world.manager.metrics.requests == 2


# ---------------------------------------------------------------------- wrong calls


@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.match("ghost", 0, 10),
        lambda manager: manager.give_up("ghost"),
        lambda manager: manager.admit("ghost", 0),
        lambda manager: manager.advance("ghost", 4),
        lambda manager: manager.preempt("ghost"),
        lambda manager: manager.finish("ghost"),
    ],
    ids=["match", "give_up", "admit", "advance", "preempt", "finish"],
)
def test_a_request_that_is_not_known_is_a_protocol_error(call: Callable[[OffloadManager], object]) -> None:
    with pytest.raises(ProtocolError, match="request 'ghost' is not known"):
        call(World().manager)


def test_a_match_of_a_request_that_is_gone_cannot_be_reserved() -> None:
    world = World()
    request = world.add("r", A)
    match = world.match(request)
    world.finish(request)
    with pytest.raises(ProtocolError, match="not known"):
        world.manager.reserve(match)


def test_a_request_cannot_be_added_twice() -> None:
    world = World()
    world.add("r", A)
    with pytest.raises(ProtocolError, match="'r' is known already"):
        world.manager.add_request("r", [[]], [[]])
    assert world.manager.metrics.requests == 1


@pytest.mark.parametrize(("keys", "blocks"), [(1, 2), (2, 1), (0, 0), (3, 3)])
def test_a_request_needs_keys_and_blocks_for_each_group(keys: int, blocks: int) -> None:
    world = World(groups=(FullAttention(4), SlidingWindow(4, 9)))
    with pytest.raises(ProtocolError, match="each of 2 groups"):
        world.manager.add_request("r", [[]] * keys, [[]] * blocks)


@pytest.mark.parametrize(
    ("state", "call"),
    [
        ("waiting", lambda world, _: world.manager.advance("r", 4)),
        ("reserved", lambda world, _: world.manager.advance("r", 4)),
        ("loading", lambda world, _: world.manager.advance("r", 4)),
        ("loading", lambda world, request: world.manager.reserve(world.match(request))),
        ("loading", lambda world, _: world.manager.admit("r", 0)),
        ("loading", lambda world, _: world.manager.give_up("r")),
        ("running", lambda world, request: world.manager.reserve(world.match(request))),
        ("running", lambda world, _: world.manager.admit("r", 0)),
        ("running", lambda world, _: world.manager.give_up("r")),
    ],
)
def test_a_call_out_of_order_is_a_protocol_error_and_changes_nothing(
    state: str, call: Callable[[World, FakeRequest], object]
) -> None:
    world = World()
    world.serve("first", A)
    world.fill_device()
    request = world.add("r", A)
    if state == "reserved":
        world.manager.reserve(world.match(request))
    elif state == "loading":
        world.admit(request)
    elif state == "running":
        world.admit(request, 0)
    before = world.manager.gauges()
    with pytest.raises(ProtocolError, match=f"'r' is {state.upper()}"):
        call(world, request)
    assert world.manager.gauges() == before
    world.finish(request)
    world.drain()


@pytest.mark.parametrize("state", ["waiting", "reserved", "loading", "running"])
def test_a_request_can_finish_in_every_state(state: str) -> None:
    world = World()
    world.serve("first", A)
    world.fill_device()
    request = world.add("r", A)
    if state == "reserved":
        world.manager.reserve(world.match(request))
    elif state != "waiting":
        world.admit(request, None if state == "loading" else 0)
    world.finish(request)
    world.drain()


# ---------------------------------------------------------------------- busy and idle


def busy(world: World) -> bool:
    return world.manager.busy


@pytest.mark.parametrize("mode", MODES)
def test_a_new_manager_is_not_busy_and_plans_nothing(mode: str) -> None:
    world = World(mode=mode)
    assert not busy(world)
    assert not world.plan()
    assert not world.plan(idle=True)


def test_a_manager_is_busy_from_the_first_block_to_the_last_report() -> None:
    world = World(ranks=2)
    request = world.begin("r", A)
    assert not busy(world)
    world.compute(request)
    assert busy(world)
    (copy,) = world.plan().stores
    assert busy(world)
    world.run(copy, ranks=[0])
    assert busy(world)
    world.run(copy, ranks=[1])
    assert not busy(world)


def test_a_manager_is_busy_when_the_end_of_a_request_has_left_something_to_store() -> None:
    world = World()
    world.finish(world.prefill("r", A))
    assert busy(world)
    world.step()
    assert not busy(world)


def test_a_manager_is_busy_while_a_load_waits_to_be_planned() -> None:
    world = World()
    world.serve("first", A)
    world.fill_device()
    request = world.begin("r", A)
    assert busy(world)
    world.step()
    assert not busy(world)
    world.finish(request)


def test_a_reservation_is_not_a_reason_to_be_busy() -> None:
    world = World()
    world.serve("first", A)
    request = world.add("r", A)
    world.manager.reserve(world.match(request))
    assert not busy(world)


def test_an_idle_engine_waits_for_the_oldest_transfer() -> None:
    world = World(pin_budget=32)
    for name in "ab":
        world.prefill(name, text(name, 16))
        world.plan()
    first, second = world.pending
    assert world.plan().wait_for == ()
    assert world.plan(idle=True).wait_for == (first,)
    world.run(world.pending[first].copy)
    assert world.plan(idle=True).wait_for == (second,)


def test_an_engine_that_computes_waits_for_no_transfer() -> None:
    world = World()
    world.prefill("r", A)
    assert world.manager.plan().stores
    assert world.manager.plan().wait_for == ()


def test_an_idle_engine_waits_for_transfers_of_earlier_plans_or_of_this_one() -> None:
    world = World()
    world.prefill("r", A)
    plan = world.plan(idle=True)
    assert plan.wait_for == (plan.stores[0].id,)


# ---------------------------------------------------------------------- gauges and reset


def test_gauges_follow_a_block_on_its_way() -> None:
    world = World(host_blocks=10, pin_budget=6)
    request = world.begin("r", text("a", 32))
    empty = Gauges(
        slots=10,
        slots_free=10,
        slots_cached=0,
        slots_writing=0,
        slots_pinned=0,
        store_pins=0,
        transfers=0,
        backlog_blocks=0,
    )
    assert world.manager.gauges() == empty
    world.compute(request)
    world.plan()
    gauges = world.manager.gauges()
    assert (gauges.slots_free, gauges.slots_writing, gauges.store_pins, gauges.transfers) == (4, 6, 6, 1)
    world.finish(request)
    assert world.manager.gauges().backlog_blocks == 2
    world.drain()
    gauges = world.manager.gauges()
    assert (gauges.slots_free, gauges.slots_cached, gauges.slots_writing, gauges.transfers) == (2, 8, 0, 0)


def test_is_cached_is_true_only_for_visible_keys() -> None:
    world = World()
    request = world.prefill("r", A)
    key = request.keys[0][0]
    assert not world.manager.is_cached(0, key)
    (copy,) = world.plan().stores
    assert not world.manager.is_cached(0, key)
    world.run(copy)
    assert world.manager.is_cached(0, key)
    world.reset()
    assert not world.manager.is_cached(0, key)


@pytest.mark.parametrize("mode", MODES)
def test_after_a_reset_nothing_of_before_is_served(mode: str) -> None:
    world = World(mode=mode)
    for name in "abc":
        world.serve(name, text(name, 33))
    world.reset()
    world.check()
    for name in "abc":
        request = world.add(f"again {name}", text(name, 33))
        assert world.match(request).tokens == 0
        world.finish(request)
        world.serve(f"and again {name}", text(name, 33))
    assert world.manager.metrics.resets == 1


def test_requests_and_resets_are_counted() -> None:
    world = World()
    for name in "abc":
        world.finish(world.add(name, A))
    for _ in range(2):
        world.reset()
    assert (world.manager.metrics.requests, world.manager.metrics.resets) == (3, 2)


def test_what_ran_at_two_resets_is_not_stored() -> None:
    world = World()
    request = world.prefill("r", A, 16)
    world.reset()
    world.reset()
    world.compute(request)
    world.finish(request)
    world.drain()
    assert world.manager.metrics.stored_blocks == 0


def test_a_reset_of_nothing_is_nothing() -> None:
    world = World()
    world.reset()
    world.reset()
    assert not world.manager.busy
    world.serve("r", A)


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("mode", MODES)
def test_after_a_stop_nothing_is_stored_and_what_was_stored_is_forgotten(mode: str) -> None:
    world = World(mode=mode, device_blocks=24)
    for name in ("before", "between"):
        world.serve(name, text(name, 33))
    assert world.manager.gauges().slots_cached
    request = world.prefill("r", A)
    world.manager.stop()
    assert world.manager.gauges().slots_cached == 0
    world.finish(request)
    other = world.add("other", text("other", 33))
    world.place(other, 0, 0)
    world.manager.admit("other", 0)
    world.compute(other)
    assert not world.plan().stores
    assert not busy(world), "what is never going to be stored keeps no idle engine from resting"
    world.finish(other)
    assert not world.plan().stores
    assert not busy(world)


def test_a_stop_leaves_what_is_below_to_others() -> None:
    world = World(below=BelowConfig(through=frozenset({"all"})))
    world.serve("before", A)
    world.manager.stop()
    assert not busy(world)
    assert not world.plan().errands


def test_what_is_in_flight_at_a_stop_is_settled() -> None:
    world = World(ranks=2)
    request = world.prefill("r", A)
    (copy,) = world.plan().stores
    world.finish(request)
    world.manager.stop()
    world.run(copy, ranks=[1])
    assert busy(world)
    assert world.pool.num_pinned == len(copy.blocks)
    world.run(copy, ranks=[0])
    assert not busy(world)
    assert world.pool.num_pinned == 0
    assert world.cached_blocks(A) == []


# ---------------------------------------------------------------------- in any order


LAYOUTS: list[tuple[Group, ...]] = [(FullAttention(4),), (FullAttention(4), SlidingWindow(4, 9))]
Action = tuple[str, int, int]


@given(
    mode=st.sampled_from(MODES),
    policy=st.sampled_from(["prefix", "lru"]),
    groups=st.sampled_from(LAYOUTS),
    actions=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "admit", "compute", "compute", "preempt", "finish", "step", "plan", "run"]),
            st.integers(0, 7),
            st.integers(1, 40),
        ),
        max_size=50,
    ),
)
def test_gauges_add_up_and_bytes_are_right_whatever_happens(
    mode: str, policy: str, groups: tuple[Group, ...], actions: list[Action]
) -> None:
    world = World(mode=mode, policy=policy, groups=groups, device_blocks=30, host_blocks=12, pin_budget=7, ranks=2)
    for number, (what, which, length) in enumerate(actions):
        act(world, number, what, which, length)
        world.check()
    for request in list(world.requests.values()):
        world.finish(request)
    world.drain()


def act(world: World, number: int, what: str, which: int, length: int) -> None:
    """Do one thing to some request, if that makes sense now."""
    request = list(world.requests.values())[which % len(world.requests)] if world.requests else None
    if what == "add":
        world.add(f"r{number}", text("ab"[which % 2], length))
    elif what == "plan":
        world.plan()
    elif what == "step":
        world.step(fails=lambda copy: which == 0 and copy.id % 2 == 0)
    elif what == "run" and world.pending:
        pending = list(world.pending.values())[which % len(world.pending)]
        world.run(pending.copy, ranks=sorted(pending.ranks_left)[:1], why="broken" if which == 7 else None)
    elif request is not None:
        act_on(world, request, what, length)


def act_on(world: World, request: FakeRequest, what: str, length: int) -> None:
    if what == "finish":
        world.finish(request)
    elif what == "preempt":
        world.preempt(request)
    elif what == "admit" and not request.placed:
        with suppress(NoRoomError):
            world.admit(request, None if length % 3 else min(world.match(request).tokens, length))
    elif what == "compute" and request.placed and not request.loading and request.computed < len(request.tokens):
        try:
            world.compute(request, min(len(request.tokens), request.computed + length))
        except NoRoomError:
            world.preempt(request)
        else:
            world.slide(request)


def test_f20_the_host_pool_grows_as_far_as_the_slowest_rank_is_ready() -> None:
    geometry = Geometry(groups=(FullAttention(4),), block_bytes=1, device_blocks=16, ranks=2)
    config = OffloadConfig.build(geometry, {"host_per_rank": 10})
    manager = OffloadManager(config, BlockPool(16), slots_ready=2)
    assert manager.gauges().slots == manager.gauges().slots_free == 2
    manager.report(Report(0, slots_ready=8))
    for rank in (-1, 2):  # neither is there
        manager.report(Report(rank, slots_ready=8))
    assert manager.gauges().slots == 2, "the other rank has two only"
    manager.report(Report(1, slots_ready=5))
    assert manager.gauges().slots == manager.gauges().slots_free == 5
    manager.report(Report(0, slots_ready=99), Report(1, slots_ready=99), Report(7, slots_ready=99))
    assert manager.gauges().slots == manager.gauges().slots_free == 10
