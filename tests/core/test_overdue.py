"""A report that never comes: nobody waits for it, and nothing is given away that may still be copied (I8, I1, I2)."""

from __future__ import annotations

import pytest

from kvtide.core import BelowConfig, Copy, Fetch, Lookup, Metrics, NotLoaded, Outcome, Report
from kvtide.core.ledger import OVERDUE_S, Ledger, LoadEntry, StoreEntry
from kvtide.core.requests import Request
from kvtide.errors import ProtocolError
from tests.support import FakeRequest, World, text

A = text("a", 16)
STEPS = int(OVERDUE_S)


def wait_long(world: World) -> Outcome:
    """Let a minute pass in which no rank reports anything."""
    for _ in range(STEPS):
        world.manager.passed(1.0)
    return world.report()


def loading(world: World) -> tuple[FakeRequest, Copy]:
    """A request whose load is in flight."""
    world.serve("before", A)
    for number in range(8):  # in lazy mode blocks are stored when they are about to be evicted
        world.serve(f"filler {number}", text(f"filler{number}.", 16))
    world.fill_device()
    request = world.add("r", A)
    assert world.admit(request)
    (copy,) = world.plan().loads
    return request, copy


def storing(world: World) -> Copy:
    """A store in flight, of a request that is over."""
    world.finish(world.prefill("r", A))
    (copy,) = world.plan().stores
    return copy


def is_busy(world: World) -> bool:
    return world.manager.busy


# ---------------------------------------------------------------------- when


def test_a_transfer_is_overdue_when_some_rank_has_been_silent_for_long() -> None:
    metrics = Metrics()
    ledger = Ledger(3, metrics)
    first, second = StoreEntry(ledger.next_id()), LoadEntry(ledger.next_id(), request=Request("r", [], []))
    ledger.start(first)
    ledger.passed(1.0)
    ledger.start(second)
    ledger.settle(Report(1, done=(first.id,)))
    for _ in range(STEPS - 2):
        assert ledger.passed(1.0) == []
    assert ledger.passed(1.0) == [first]
    assert first.failure == f"rank 0, 2: no report for {OVERDUE_S:.0f} s"
    assert (list(ledger), list(ledger.overdue)) == ([second], [first])
    assert ledger.passed(1.0) == [second]
    assert ledger.passed(1.0) == [], "once"
    assert metrics.transfers_overdue == 2


def test_why_a_rank_has_failed_is_told_although_another_is_silent() -> None:
    ledger = Ledger(2, Metrics())
    load = LoadEntry(ledger.next_id(), request=Request("r", [], []))
    ledger.start(load)
    ledger.settle(Report(0, failed=((load.id, "no device"),)))
    for _ in range(STEPS):
        ledger.passed(1.0)
    assert load.failure == "rank 0: no device"


def test_time_in_which_the_engine_did_not_step_does_not_count() -> None:
    """No rank can report while the engine is paused, or compiles for minutes."""
    ledger = Ledger(1, Metrics())
    ledger.start(StoreEntry(ledger.next_id()))
    assert ledger.passed(10 * OVERDUE_S) == []


def test_an_engine_that_does_not_tell_the_time_waits_for_ever() -> None:
    world = World()
    storing(world)
    for _ in range(10 * STEPS):
        world.report()
    assert world.manager.overdue is None


# ---------------------------------------------------------------------- loads


@pytest.mark.parametrize("ranks", [1, 2])
def test_f15_a_request_does_not_wait_for_a_load_that_does_not_come(ranks: int) -> None:
    world = World(ranks=ranks)
    request, copy = loading(world)
    world.manager.metrics.not_loaded.clear()
    outcome = wait_long(world)
    assert (outcome.failed, outcome.overdue) == (("r",), ("r",))
    assert not world.admit(request), "it computes"
    assert not set(copy.blocks) & set(request.blocks[0]), "into other blocks"
    world.compute(request)
    world.finish(request)
    assert world.manager.metrics.not_loaded == {NotLoaded.NO_REPORT: 12 + 16}
    assert wait_long(world).failed == (), "once"


def test_f15_blocks_and_slots_of_an_overdue_load_stay_pinned_until_every_rank_has_spoken() -> None:
    world = World(ranks=2)
    request, copy = loading(world)
    wait_long(world)
    world.finish(request)
    assert world.manager.gauges().transfers_unanswered == 1
    pinned = [world.pool.num_pinned, world.manager.gauges().slots_pinned]
    assert pinned == [len(copy.blocks)] * 2
    world.run(copy, ranks=[1])
    assert [world.pool.num_pinned, world.manager.gauges().slots_pinned] == pinned
    assert world.run(copy, ranks=[0]) == Outcome()
    world.drain()
    assert world.manager.gauges().transfers_unanswered == 0


def test_a_load_that_was_announced_early_and_is_not_reported_keeps_its_request_running() -> None:
    world = World()
    request, copy = loading(world)
    world._move(world.pending[copy.id], 0, half=False)
    assert world.manager.arrived("r")
    assert wait_long(world).failed == ()
    request.loading = False
    world.finish(request)
    world.run(copy)
    world.drain()


def test_a_load_that_is_reported_in_the_very_step_in_which_it_is_overdue_has_failed_and_is_not_silent() -> None:
    world = World()
    request, copy = loading(world)
    for _ in range(STEPS):
        world.manager.passed(1.0)
    outcome = world.run(copy)
    assert (outcome.loaded, outcome.failed, outcome.overdue) == ((), ("r",), ())
    world.admit(request)
    world.compute(request)
    world.finish(request)
    world.drain()


def test_a_request_may_end_in_the_very_step_in_which_its_load_is_overdue() -> None:
    world = World()
    request, copy = loading(world)
    for _ in range(STEPS):
        world.manager.passed(1.0)
    world.finish(request)
    assert world.report() == Outcome()
    world.run(copy)
    world.drain()


# ---------------------------------------------------------------------- stores


def test_f15_an_idle_engine_comes_to_rest_without_the_report_of_a_store() -> None:
    world = World()
    copy = storing(world)
    assert is_busy(world)
    wait_long(world)
    assert not is_busy(world)
    assert world.pool.num_pinned == len(copy.blocks)
    assert world.cached_blocks(A) == []


def test_f10_a_store_that_is_reported_too_late_is_not_believed_and_made_again() -> None:
    world = World()
    copy = storing(world)
    wait_long(world)
    world.run(copy)
    assert world.cached_blocks(A) == []
    assert world.manager.metrics.stores_failed == 1
    world.drain()
    assert world.cached_blocks(A) == [0, 1, 2, 3]


# ---------------------------------------------------------------------- meanwhile


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_f12_pins_do_not_add_up_while_copies_do_not_end(mode: str) -> None:
    world = World(mode=mode, device_blocks=16, pin_budget=8)
    _, copy = loading(world)
    wait_long(world)
    world.finish(world.requests["r"])
    for number in range(6):
        request = world.add(f"other {number}", text(f"other{number}.", 16))
        assert not world.admit(request)
        world.compute(request)
        assert world.plan().stores == ()
        assert not is_busy(world)
        world.finish(request)
        plan = world.plan()
        assert (plan.loads, plan.stores, plan.ask) == ((), (), (copy.id,))
    assert world.pool.num_pinned == len(copy.blocks)
    assert not world.manager.busy, "what has to wait for that does not keep an idle engine from resting"
    world.run(copy)
    world.drain()


def test_an_engine_goes_on_stepping_for_what_is_not_overdue_yet() -> None:
    world = World()
    _, copy = loading(world)
    for _ in range(STEPS // 2):
        world.manager.passed(1.0)
    other = world.add("other", A)
    world.manager.reserve(match := world.match(other))
    world.prefill("running", text("running", 16))
    (store,) = world.plan().stores
    for _ in range(STEPS - STEPS // 2):
        world.manager.passed(1.0)
    world.report()
    assert is_busy(world)
    world.run(store)
    assert not is_busy(world)
    world.place(other, match.device_tokens, match.device_tokens + match.tokens)
    other.loading = world.manager.admit("other", match.tokens)
    assert is_busy(world), "what was promised before is loaded"
    (promised,) = world.plan().loads
    assert world.run(promised).loaded == ("other",)
    assert not is_busy(world)
    world.run(copy)
    world.drain()


def test_nothing_is_offered_until_all_ranks_have_answered() -> None:
    world = World()
    request, copy = loading(world)
    wait_long(world)
    world.finish(request)
    assert world.manager.overdue == f"transfer {copy.id}: rank 0: no report for {OVERDUE_S:.0f} s"
    other = world.add("other", A)
    assert world.match(other).missed == {NotLoaded.NO_REPORT: len(A)}
    del world.pending[copy.id]
    world.report(Report(0, failed=((copy.id, "this rank has no such transfer under way"),)))
    assert world.match(other).tokens == 12


def test_f9_an_overdue_store_comes_to_nothing_after_a_reset() -> None:
    world = World()
    copy = storing(world)
    wait_long(world)
    world.reset()
    world.run(copy)
    world.drain()
    assert world.cached_blocks(A) == []


# ---------------------------------------------------------------------- below


def test_f18_a_request_does_not_wait_for_an_answer_that_does_not_come() -> None:
    world = World(below=BelowConfig(through=frozenset({"all"})), min_fetch_tokens=4)
    request = world.add("r", A)
    match = world.match(request)
    assert match.waits
    world.manager.reserve(match)
    (lookup,) = world.plan().errands
    assert isinstance(lookup, Lookup)
    wait_long(world)
    assert not world.manager.waits("r")
    assert world.plan().ask == (lookup.id,)
    world.errands.clear()
    world.report(Report(0, failed=((lookup.id, "this rank has no such transfer under way"),)))
    assert world.manager.overdue is None
    assert world.match(request).missed == {NotLoaded.TIER_LATE: 12}, "one block has to be computed anyway"
    assert not world.admit(request)
    world.compute(request)
    world.finish(request)
    world.drain()


def test_an_overdue_lookup_of_a_request_that_is_over_is_not_taken_for_that_of_a_namesake() -> None:
    world = World(below=BelowConfig(through=frozenset({"all"})), min_fetch_tokens=4)
    request = world.add("r", A)
    world.manager.reserve(world.match(request))
    (old,) = world.plan().errands
    world.finish(request)
    world.manager.passed(1.0)
    namesake = world.add("r", A)
    world.manager.reserve(world.match(namesake))
    (new,) = world.plan().errands
    for _ in range(STEPS - 1):
        world.manager.passed(1.0)
    assert world.plan().ask == (old.id,)
    assert world.manager.waits("r")
    assert world.manager.gauges().searches == 1
    world.answer(new)
    world.plan()
    assert not world.manager.waits("r"), "there is nothing below"


def test_f18_nobody_waits_for_a_fetch_that_does_not_come() -> None:
    world = World(ranks=2, below=BelowConfig(through=frozenset({"all"})), min_fetch_tokens=4)
    world.serve("before", A)
    below = world.below
    world.reset()
    world.drain()
    world.below, world.weights = below, 0  # the same weights after all: only the host has forgotten
    requests = [world.add(name, A) for name in "rs"]
    world.manager.reserve(world.match(requests[0]))
    (lookup,) = world.plan().errands
    world.answer(lookup)
    (fetch,) = world.plan().errands
    assert isinstance(fetch, Fetch)
    world.manager.reserve(world.match(requests[1]))
    wait_long(world)
    assert [world.manager.waits(name) for name in "rs"] == [False, False]
    assert world.manager.metrics.fetches_late == 1
    assert world.manager.gauges().slots_writing == len(fetch.slots), "a rank may still write to them"
    world.answer(fetch)
    assert world.manager.gauges().slots_writing == 0
    assert [world.match(request).tokens for request in requests] == [12, 12], "what has come after all is of use"


def test_a_rank_that_was_not_asked_cannot_call_an_errand_failed() -> None:
    """A stray report must not free slots that a tier writes to."""
    world = World(below=BelowConfig(through=frozenset({"all"})), min_fetch_tokens=4)
    request = world.add("r", A)
    world.manager.reserve(world.match(request))
    (lookup,) = world.plan().errands
    world.report(Report(0, failed=((lookup.id, "stray"),)))
    assert world.manager.metrics.reports_unknown == 1
    assert world.manager.waits("r")


def test_a_report_of_an_overdue_load_does_not_wake_a_request_that_has_gone_on() -> None:
    world = World()
    request, copy = loading(world)
    wait_long(world)
    assert world.run(copy) == Outcome()
    with pytest.raises(ProtocolError):
        world.manager.arrived("r")
    world.admit(request)
    world.compute(request)
    world.finish(request)
    world.drain()
