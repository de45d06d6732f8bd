"""Loads: what was offered is kept, both sides are pinned, and a failure costs time but no tokens."""

from __future__ import annotations

import pytest

from kvtide.core import (
    NULL_BLOCK,
    ChunkedLocal,
    Copy,
    FullAttention,
    NotLoaded,
    NotStored,
    Outcome,
    Report,
    SlidingWindow,
)
from kvtide.core.requests import State
from kvtide.errors import ProtocolError
from tests.support import FakeRequest, NoRoomError, World, text

A = text("a", 33)


def warm(**options: object) -> World:
    """A world that has 32 tokens of `A` on the host and nothing on the device."""
    world = World(**options)  # type: ignore[arg-type]
    world.serve("first", A)
    world.fill_device()
    return world


def waiting(world: World, request_id: str = "r", tokens: int = 40) -> FakeRequest:
    return world.add(request_id, A[:tokens] + text("more", max(0, tokens - len(A))))


def test_a_load_delivers_what_was_computed() -> None:
    world = warm()
    request = waiting(world)
    assert world.admit(request)
    assert world.step() == Outcome(loaded=("r",))
    assert request.computed == 32
    world.compute(request)  # looks at every byte
    assert world.manager.metrics.loaded_tokens == 32
    assert world.manager.metrics.loaded_blocks == 8


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_load_is_complete_when_every_rank_has_it(ranks: int) -> None:
    world = warm(ranks=ranks)
    request = waiting(world)
    world.admit(request)
    (copy,) = world.plan().loads
    for rank in range(ranks):
        outcome = world.run(copy, ranks=[rank])
        assert outcome == (Outcome(loaded=("r",)) if rank == ranks - 1 else Outcome())


def test_both_sides_are_pinned_while_a_load_runs_and_free_afterwards() -> None:
    world = warm(device_blocks=16)
    request = waiting(world)
    world.admit(request)
    (copy,) = world.plan().loads
    assert world.manager.gauges().slots_pinned == 8
    world.finish(request)
    assert world.pool.num_pinned == 8, "the engine has freed them, the load keeps them"
    assert world.run(copy) == Outcome()
    assert world.manager.gauges().slots_pinned == 0
    assert world.pool.num_free == 16


def test_an_engine_may_have_allocated_more_than_the_load_needs() -> None:
    """Room for what is computed next."""
    world = warm()
    request = waiting(world)
    match = world.match(request)
    world.manager.reserve(match)
    world.place(request, 0, len(request.tokens))
    assert world.manager.admit("r", match.tokens)
    (copy,) = world.plan().loads
    assert copy.blocks == tuple(request.blocks[0][:8])


@pytest.mark.parametrize("policy", ["prefix", "lru"])
def test_what_is_loaded_is_not_evicted_soon(policy: str) -> None:
    world = World(host_blocks=16, policy=policy)
    world.serve("first", A)
    world.serve("second", text("b", 33))
    world.fill_device()
    request = waiting(world, tokens=33)
    assert world.admit(request)
    world.step()
    world.serve("third", text("c", 32))
    assert world.cached_blocks(A) == list(range(8))


def test_what_was_loaded_and_has_left_the_host_is_stored_again_at_the_end() -> None:
    world = World(host_blocks=8)
    world.serve("first", A)
    world.fill_device()
    request = waiting(world)
    assert world.admit(request)
    world.step()
    world.serve("other", text("b", 16))
    assert world.cached_blocks(A) != list(range(8))
    world.finish(request)  # before it has computed anything
    world.drain()
    assert world.cached_blocks(A) == list(range(8))


def test_only_what_the_device_lacks_is_loaded() -> None:
    world = World()
    world.serve("first", A)
    request = waiting(world)
    blocks = world.pool.allocate(world.pool.num_free - 5)  # the device forgets the tail of the prefix
    world.pool.free(blocks or [])
    held = world.device_hit(request)
    assert 0 < held < 32
    assert world.admit(request)
    (copy,) = world.plan().loads
    assert len(copy.blocks) == (32 - held) // 4
    world.run(copy)
    world.compute(request)


# ---------------------------------------------------------------------- reservations


def test_a_reservation_survives_the_rush_for_room() -> None:
    world = warm(host_blocks=8)
    request = waiting(world)
    match = world.match(request)
    world.manager.reserve(match)
    world.serve("other", text("b", 33))
    assert world.cached_blocks(A) == list(range(8))
    world.place(request, 0, 32)
    assert world.manager.admit("r", 32)
    assert world.step() == Outcome(loaded=("r",))


@pytest.mark.parametrize("how", ["give_up", "finish", "preempt", "admit nothing", "reserve nothing"])
def test_a_reservation_ends_with(how: str) -> None:
    world = warm()
    request = waiting(world)
    world.manager.reserve(world.match(request))
    assert world.manager.gauges().slots_pinned == 8
    if how == "give_up":
        world.manager.give_up("r")
    elif how == "finish":
        world.finish(request)
    elif how == "preempt":
        world.preempt(request)
    elif how == "admit nothing":
        assert not world.manager.admit("r", 0)
    else:
        world.manager.reserve(world.manager.match("r", 0, 1))
    assert world.manager.gauges().slots_pinned == 0


def test_a_second_reservation_takes_the_place_of_the_first() -> None:
    world = warm()
    request = waiting(world)
    world.manager.reserve(world.match(request))
    world.manager.reserve(world.manager.match("r", 16, 40))
    assert world.manager.gauges().slots_pinned == 4


def test_two_requests_can_reserve_the_same_blocks() -> None:
    world = warm()
    first, second = waiting(world, "r1"), waiting(world, "r2")
    for request in (first, second):
        world.manager.reserve(world.match(request))
    world.manager.give_up("r1")
    assert world.manager.gauges().slots_pinned == 8
    world.manager.give_up("r2")
    assert world.manager.gauges().slots_pinned == 0


def test_no_room_on_the_device_is_an_ordinary_answer() -> None:
    world = warm(device_blocks=9)
    taken = world.pool.allocate(5) or []
    request = waiting(world)
    with pytest.raises(NoRoomError):
        world.admit(request)
    assert world.manager.gauges().slots_pinned == 0
    world.pool.free(taken)
    assert world.admit(request)


# ---------------------------------------------------------------------- acceptance


@pytest.mark.parametrize("accept", [0, 4, 8, 28, 32])
def test_an_engine_may_take_any_part_of_an_offer(accept: int) -> None:
    world = warm()
    request = waiting(world)
    assert world.admit(request, accept) == bool(accept)
    world.step()
    assert request.computed == accept
    assert world.manager.metrics.loaded_tokens == accept
    assert world.manager.metrics.not_loaded[NotLoaded.NOT_ACCEPTED] == 32 - accept
    assert world.manager.metrics.loaded_blocks == accept // 4
    world.compute(request)


@pytest.mark.parametrize("accept", [1, 5, 7, 30])
def test_an_engine_may_accept_up_to_the_middle_of_a_block(accept: int) -> None:
    world = warm()
    request = waiting(world)
    assert world.admit(request, accept)
    world.step()
    assert request.computed == accept
    world.compute(request)  # the rest of that block, too
    world.finish(request)
    world.drain()


@pytest.mark.parametrize("accept", [-1, 33, 1000])
def test_more_than_was_offered_cannot_be_accepted(accept: int) -> None:
    world = warm()
    request = waiting(world)
    world.manager.reserve(world.match(request))
    with pytest.raises(ProtocolError, match=f"{accept} tokens accepted, 32 offered"):
        world.manager.admit("r", accept)
    assert world.manager.gauges().slots_pinned == 8, "a call that is refused changes nothing"
    world.manager.give_up("r")


def test_without_a_reservation_nothing_can_be_accepted() -> None:
    world = warm()
    waiting(world)
    with pytest.raises(ProtocolError, match="4 tokens accepted, 0 offered"):
        world.manager.admit("r", 4)


def test_a_table_that_is_too_short_for_the_load_is_refused() -> None:
    world = warm()
    request = waiting(world)
    world.manager.reserve(world.match(request))
    with pytest.raises(ProtocolError, match="group 0 has 0 blocks in its table, and the load needs 8"):
        world.manager.admit("r", 32)
    world.place(request, 0, 32)
    assert world.manager.admit("r", 32), "the reservation is still there"
    world.step()
    world.finish(request)
    world.drain()


def test_missed_tokens_are_counted_when_a_request_is_admitted_and_not_before() -> None:
    world = warm()
    request = world.add("r", text("new", 17))
    for _ in range(3):
        world.manager.reserve(world.match(request))
        world.manager.give_up("r")
    assert world.manager.metrics.not_loaded[NotLoaded.NOT_CACHED] == 32  # of the first request
    world.admit(request)
    assert world.manager.metrics.not_loaded[NotLoaded.NOT_CACHED] == 32 + 16


# ---------------------------------------------------------------------- windows


HYBRID = (FullAttention(4), SlidingWindow(4, 9))


def test_a_load_leaves_out_old_window_blocks() -> None:
    world = warm(groups=HYBRID)
    request = waiting(world)
    assert world.admit(request)
    (copy,) = world.plan().loads
    assert len(copy.blocks) == 8 + 2
    assert request.blocks[1][:6] == [NULL_BLOCK] * 6
    world.run(copy)
    world.compute(request)


def test_a_part_that_needs_other_blocks_than_were_offered_keeps_those_until_they_are_read() -> None:
    world = warm(groups=(SlidingWindow(4, 9),))
    request = waiting(world)
    offered = world.match(request).slots
    assert world.admit(request, 28)
    (copy,) = world.plan().loads
    needed = world.host_pool.slots_of(0, request.keys[0][5:7])
    assert list(copy.slots) == needed != offered
    assert [slot for slot in range(world.host_pool.slots) if world.host_pool._pins[slot]] == sorted(copy.slots)
    world.run(copy)
    assert world.host_pool.num_pinned() == 0


def test_what_is_loaded_is_renewed_with_its_place_in_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    world = warm(groups=HYBRID)
    used: list[tuple[list[int], int, int]] = []
    monkeypatch.setattr(world.host_pool._policy, "use", lambda *chain: used.append(chain))
    world.admit(waiting(world))
    (copy,) = world.plan().loads
    assert used == [(list(copy.slots[:8]), 4, 4), (list(copy.slots[8:]), 28, 4)]


def test_what_the_engine_leaves_out_of_its_table_is_not_loaded() -> None:
    world = warm(groups=HYBRID)
    request = waiting(world)
    match = world.match(request)
    world.manager.reserve(match)
    world.place(request, match.device_tokens, match.tokens)
    request.blocks[1][6] = NULL_BLOCK
    kept = request.blocks[1][7]
    assert world.manager.admit(request.id, match.tokens)
    (copy,) = world.plan().loads
    assert set(copy.blocks) == {*request.blocks[0], kept}
    slots = dict(zip(copy.blocks, copy.slots, strict=True))
    assert world.host[0, slots[kept]].tokens == tuple(A[28:32])


def test_what_the_engine_left_out_from_the_beginning_is_not_a_loss_of_this_request() -> None:
    world = World(groups=HYBRID)
    first = world.prefill("first", A)
    world.slide(first)  # before the plan
    world.finish(first)
    world.drain()
    assert world.manager.metrics.not_stored == {NotStored.OUT_OF_WINDOW: 6}
    again = waiting(world)
    world.admit(again)
    world.compute(again)
    world.step()
    world.finish(again)
    world.drain()
    assert world.manager.metrics.not_stored == {NotStored.OUT_OF_WINDOW: 6}, "counted where it was computed"


def test_a_smaller_part_of_an_offer_needs_other_window_blocks() -> None:
    world = warm(groups=HYBRID)
    request = waiting(world)
    assert world.admit(request, 20)
    (copy,) = world.plan().loads
    assert len(copy.blocks) == 5 + 2
    world.run(copy)
    assert world.manager.gauges().slots_pinned == 0
    assert request.computed == 20
    world.compute(request)
    world.finish(request)
    world.drain()


def test_a_smaller_part_whose_window_is_gone_is_a_failed_load_and_recomputed() -> None:
    world = World(groups=HYBRID)
    request = world.begin("first", A)
    for upto in range(4, 33, 4):
        world.compute(request, upto)
        if upto >= 24:
            world.step()  # the window has lost the blocks before by now
        world.slide(request)
    world.finish(request)
    world.drain()
    world.fill_device()
    assert world.cached_blocks(A, 1) != list(range(8))
    again = waiting(world)
    assert world.match(again).tokens == 32
    assert world.admit(again, 12)
    assert world.report() == Outcome(failed=("r",)), "no worker is needed to say so"
    assert not world.plan().loads
    assert world.manager.metrics.not_loaded[NotLoaded.COPY_FAILED] == 12
    assert not world.admit(again)
    world.compute(again)
    world.finish(again)
    world.drain()


def test_a_load_of_nothing_ends_without_workers() -> None:
    world = World(groups=(ChunkedLocal(4, 8),))
    request = world.add("r", text("a", 18))
    world.manager.reserve(world.manager.match("r", 0, 18))  # nothing is needed right after a chunk
    world.place(request, 0, 16)
    assert world.manager.admit("r", 16)
    assert world.manager.busy
    assert not world.plan().loads
    assert world.report() == Outcome(loaded=("r",))
    assert request.computed == 16
    assert not world.manager.busy


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("failing", [[0], [1], [0, 1]])
def test_a_load_that_failed_on_any_rank_is_recomputed(failing: list[int]) -> None:
    world = warm(ranks=2)
    request = waiting(world)
    world.admit(request)
    (copy,) = world.plan().loads
    outcome = Outcome()
    for rank in range(2):
        assert outcome == Outcome(), "nobody is told before the last rank has spoken"
        outcome = world.run(copy, ranks=[rank], why="broken" if rank in failing else None)
    assert outcome == Outcome(failed=("r",))
    assert world.manager.metrics.loads_failed == 1
    assert world.manager.metrics.loaded_tokens == 0
    assert world.manager.metrics.not_loaded[NotLoaded.COPY_FAILED] == 32
    assert world.manager.gauges().slots_pinned == 0
    assert not world.admit(request), "it is not tried again"
    world.compute(request)


def test_after_a_failed_load_everything_beyond_the_device_is_missed_for_that_reason() -> None:
    world = warm()
    request = waiting(world)
    world.admit(request)
    world.step(fails=lambda _: True)
    assert world.manager.match("r", 8, 40).missed == {NotLoaded.COPY_FAILED: 32}


def test_a_failed_load_does_not_keep_others_from_loading() -> None:
    world = warm()
    world.admit(waiting(world, "r1"))
    world.step(fails=lambda _: True)
    other = waiting(world, "r2")
    assert world.admit(other)
    assert world.step() == Outcome(loaded=("r2",))


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("how", ["preempt", "finish"])
def test_a_request_may_go_while_it_loads(how: str, planned: bool) -> None:
    world = warm()
    request = waiting(world)
    world.admit(request)
    if planned:
        world.plan()
    if how == "preempt":
        world.preempt(request)
    else:
        world.finish(request)
    assert world.step() == Outcome()
    world.drain()
    if how == "preempt":
        assert world.admit(request), "it may load again"
        assert world.step() == Outcome(loaded=("r",))


def test_the_end_of_an_earlier_load_is_not_taken_for_that_of_a_later_one() -> None:
    world = warm()
    request = waiting(world)
    world.admit(request)
    (early,) = world.plan().loads
    world.preempt(request)
    world.admit(request)
    (late,) = world.plan().loads
    assert world.run(early) == Outcome()
    assert request.loading
    assert world.run(late) == Outcome(loaded=("r",))


def test_the_end_of_a_load_is_not_taken_for_that_of_a_namesake() -> None:
    world = warm()
    request = waiting(world)
    world.admit(request)
    (copy,) = world.plan().loads
    world.finish(request)
    namesake = waiting(world)
    assert world.admit(namesake)
    assert world.run(copy) == Outcome()
    assert world.step() == Outcome(loaded=("r",))


@pytest.mark.parametrize("planned", [False, True])
def test_a_load_under_way_at_a_reset_comes_to_nothing(planned: bool) -> None:
    world = warm()
    request = waiting(world)
    world.admit(request)
    if planned:
        world.plan()
    world.reset()
    assert world.step() == Outcome(failed=("r",))
    assert world.manager.metrics.not_loaded[NotLoaded.RESET] == 32
    assert world.manager.metrics.loads_failed == 0
    world.drain()
    assert world.manager.gauges().slots_free == world.manager.gauges().slots


def test_a_reservation_ends_with_a_reset() -> None:
    world = warm()
    request = waiting(world)
    world.manager.reserve(world.match(request))
    world.reset()
    assert world.manager._requests["r"].state is State.WAITING
    assert world.manager.gauges().slots_free == world.manager.gauges().slots
    assert world.match(request).tokens == 0
    assert not world.admit(request)


def test_a_report_that_comes_twice_ends_a_load_once() -> None:
    world = warm()
    request = waiting(world)
    world.admit(request)
    (copy,) = world.plan().loads
    world.run(copy)
    assert world.report(Report(0, done=(copy.id,))) == Outcome()
    assert world.manager.metrics.reports_unknown == 1
    world.check()


# ---------------------------------------------------------------------- told before the end


def loading(world: World) -> tuple[FakeRequest, Copy]:
    """A request whose load is under way."""
    world.serve("before", A)
    world.fill_device()
    request = world.add("r", A)
    assert world.admit(request)
    (copy,) = world.plan().loads
    return request, copy


def test_a_request_may_go_on_when_its_load_is_certain() -> None:
    world = World()
    request, copy = loading(world)
    assert world.manager.arrived("r")
    pinned = world.manager.gauges().slots_pinned
    assert pinned == len(copy.slots), "what is read and written stays taken until the ranks report"
    request.loading, request.computed = False, request.resume_at
    world.run(copy)
    world.compute(request)
    world.finish(request)
    world.drain()
    assert world.manager.metrics.loaded_blocks == len(copy.blocks)


def test_a_request_that_ends_before_the_report_of_its_load_is_stored_whole() -> None:
    world = World()
    request, copy = loading(world)
    assert world.manager.arrived("r")
    request.loading, request.computed = False, request.resume_at
    world.append(request, text("more", 8))
    world.run(copy)
    world.compute(request)
    world.finish(request)
    world.drain()
    assert world.cached_blocks(request.tokens) == list(range(10))


def test_after_a_reset_nothing_has_arrived() -> None:
    world = World()
    request, copy = loading(world)
    world.reset()
    assert not world.manager.arrived("r")
    world.preempt(request)
    world.run(copy)
    world.drain()


def test_only_a_load_can_arrive() -> None:
    world = World()
    world.add("r", A)
    with pytest.raises(ProtocolError, match="no load"):
        world.manager.arrived("r")
