"""What is below: a request waits for it once, and never for long; blocks come up once, and are kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvtide.core import (
    BelowConfig,
    Clear,
    Fetch,
    FullAttention,
    Lookup,
    Match,
    NotLoaded,
    NotStored,
    Report,
    Sink,
    SlidingWindow,
    StateSpace,
    Stored,
    ledger,
)
from kvtide.core.below import below as below_module
from kvtide.core.below import fetches as fetches_module
from kvtide.core.break_even import RETRY_EVERY
from kvtide.core.storing.stores import ATTEMPTS_MAX
from tests.support import FakeRequest, World, text

A = text("a", 32)
THROUGH = BelowConfig(through=frozenset({"all"}))
HYBRID = (FullAttention(4), SlidingWindow(4, 8))


def with_tiers(**options: object) -> World:
    options = {"below": THROUGH, "min_fetch_tokens": 4, **options}
    return World(**options)  # type: ignore[arg-type]


def sunk(world: World, tokens: list[str] = A) -> None:
    """Serve a prompt, let it sink, and forget it on the device and on the host, as a restart would."""
    world.serve("before", tokens)
    forget(world)


def forget(world: World) -> None:
    """Let the device and the host forget everything, and keep what is below."""
    kept = dict(world.below)
    world.reset()
    world.drain()
    world.below = kept
    world.weights -= 1  # the same weights after all: only this test has forgotten


def store(world: World, tokens: list[str]) -> None:
    """Compute and store a prompt of somebody else, and leave the errands alone."""
    world.finish(world.prefill("other", tokens))
    for _ in range(8):
        world.plan()
        world.drain_copies()


def ask(world: World, request: FakeRequest) -> Match:
    """Match a request and keep what was found, as an engine does in each step."""
    match = world.match(request)
    world.manager.reserve(match)
    return match


def looking(world: World, tokens: list[str] = A, name: str = "r") -> tuple[FakeRequest, Lookup]:
    """A request that has asked what is below."""
    request = world.add(name, tokens)
    assert ask(world, request).waits
    (lookup,) = world.plan().errands
    assert isinstance(lookup, Lookup)
    return request, lookup


def fetching(world: World, tokens: list[str] = A, name: str = "r") -> tuple[FakeRequest, list[Fetch]]:
    """A request for which blocks are on their way up."""
    request, lookup = looking(world, tokens, name)
    world.answer(lookup)
    fetches = [errand for errand in world.plan().errands if isinstance(errand, Fetch)]
    return request, fetches


def test_without_tiers_nobody_waits() -> None:
    world = World()
    request = world.add("r", A)
    assert not ask(world, request).waits
    assert not world.plan().errands


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("groups", [(FullAttention(4),), HYBRID])
def test_what_has_sunk_comes_up_and_is_loaded(ranks: int, groups: tuple[FullAttention, ...]) -> None:
    world = with_tiers(ranks=ranks, groups=groups)
    sunk(world)
    request, fetches = fetching(world)
    assert world.manager.waits("r")
    for fetch in fetches:
        world.answer(fetch)
    match = ask(world, request)
    assert (match.waits, match.tokens) == (False, 28), "one token of 32 has to be computed"
    world.admit(request)
    world.drain()
    world.check_request(request)
    assert world.manager.metrics.fetched_blocks == sum(len(fetch.slots) for fetch in fetches)


def test_a_short_prompt_is_not_worth_asking() -> None:
    world = with_tiers(min_fetch_tokens=40)
    request = world.add("r", A)
    assert not ask(world, request).waits


def test_a_request_asks_once() -> None:
    world = with_tiers()
    request, lookup = looking(world)
    world.answer(lookup)
    world.plan()
    assert not ask(world, request).waits, "nothing was found, so it computes"
    world.admit(request)
    world.preempt(request)
    assert not ask(world, request).waits


def test_what_the_host_has_is_kept_while_the_rest_is_looked_for() -> None:
    world = with_tiers(host_blocks=8)
    world.serve("first half", A[:16])
    world.fill_device()
    request, lookup = looking(world)
    assert len(lookup.names) == 3, "blocks 5 to 7: the last one cannot be loaded whole"
    store(world, text("b", 32))
    world.answer(lookup)
    world.plan()
    assert ask(world, request).tokens == 16


def test_only_what_can_be_resumed_from_is_fetched() -> None:
    world = with_tiers()
    sunk(world)
    request, lookup = looking(world)
    world.answer(lookup, misses=[2])
    (fetch,) = world.plan().errands
    assert isinstance(fetch, Fetch)
    assert len(fetch.slots) == 2, "the third is not there, so those behind it are of no use"
    world.answer(fetch)
    assert ask(world, request).tokens == 8


def test_what_is_gone_when_it_is_fetched_is_counted_and_computed() -> None:
    world = with_tiers()
    sunk(world)
    request, (fetch,) = fetching(world)
    world.answer(fetch, misses=[3])
    assert ask(world, request).tokens == 12
    world.admit(request)
    world.drain()
    metrics = world.manager.metrics
    assert (metrics.fetched_blocks, metrics.fetch_missed_blocks) == (6, 1)
    assert not metrics.not_stored, "nobody has computed it meanwhile"


def test_a_block_counts_as_fetched_when_every_rank_has_its_part() -> None:
    """F10, below host memory."""
    world = with_tiers(ranks=2)
    sunk(world)
    lost = next(name for rank, name in world.below if rank == 1)
    del world.below[1, lost]
    _, lookup = looking(world)
    world.answer(lookup)
    assert not world.plan().errands, "rank 1 has lost the first block"


def test_nobody_waits_for_a_tier_that_is_late() -> None:
    """F18."""
    world = with_tiers()
    sunk(world)
    request, (fetch,) = fetching(world)
    world.report(Report(0, late=(fetch.id,)))
    match = ask(world, request)
    assert (match.waits, match.tokens) == (False, 0)
    assert match.missed == {NotLoaded.TIER_LATE: 28}
    world.admit(request)
    world.answer(fetch)
    assert world.cached_blocks(A) == list(range(7)), "what came too late for one is there for the next"
    assert world.manager.metrics.fetches_late == 1
    world.compute(request)
    world.finish(request)
    world.drain()


def test_f18_nobody_begins_to_wait_for_a_fetch_that_is_late_already() -> None:
    world = with_tiers()
    sunk(world)
    _, (fetch,) = fetching(world, name="first")
    world.report(Report(0, late=(fetch.id,)))
    second = world.add("second", A)
    assert ask(world, second).waits, "what else is below may be worth waiting for"
    assert not world.plan().errands
    assert not world.manager.waits("second")


def test_f18_nor_after_its_own_lookup() -> None:
    world = with_tiers()
    sunk(world)
    first = world.add("first", A)
    second = world.add("second", A)
    ask(world, first)
    ask(world, second)
    lookups = world.plan().errands
    world.answer(lookups[0])
    (fetch,) = world.plan().errands
    world.report(Report(0, late=(fetch.id,)))
    world.answer(lookups[1])
    assert not world.plan().errands
    assert not world.manager.waits("second")


def test_only_what_is_not_there_is_blamed_on_a_tier_that_is_late() -> None:
    world = with_tiers(min_load_tokens=8)
    sunk(world)
    store(world, A[:4])
    world.fill_device()
    request, fetches = fetching(world)
    world.report(Report(0, late=tuple(fetch.id for fetch in fetches)))
    assert ask(world, request).missed == {NotLoaded.TIER_LATE: 24, NotLoaded.BELOW_BREAK_EVEN: 4}


def test_f31_a_request_that_nothing_is_below_for_goes_on_as_soon_as_that_is_known() -> None:
    world = with_tiers()
    request, lookup = looking(world)
    world.answer(lookup)
    assert not world.manager.waits(request.id), "no plan has to come between"
    assert not ask(world, request).waits


def test_what_is_not_below_is_not_called_late() -> None:
    world = with_tiers()
    request, lookup = looking(world)
    world.answer(lookup)
    world.plan()
    assert set(ask(world, request).missed) == {NotLoaded.NOT_CACHED}


def test_news_of_a_fetch_that_is_over_changes_nothing() -> None:
    world = with_tiers()
    sunk(world)
    _, (fetch,) = fetching(world)
    world.answer(fetch)
    world.report(Report(0, late=(fetch.id, 99)))
    assert world.manager.metrics.fetches_late == 0


def test_two_requests_wait_for_one_fetch() -> None:
    world = with_tiers()
    sunk(world)
    _, (fetch,) = fetching(world)
    second = world.add("second", A)
    assert ask(world, second).waits
    assert not world.plan().errands, "everything is on its way up already"
    world.answer(fetch)
    assert ask(world, second).tokens == 28


def test_a_request_waits_for_what_others_fetch_and_for_its_own() -> None:
    before, world = with_tiers(), with_tiers(device_blocks=64)
    longer = A + text("more", 16)
    before.serve("before", longer)
    world.below = dict(before.below)
    lookups = world.manager.metrics.lookups
    _, (others,) = fetching(world, A, "first")
    request, lookup = looking(world, longer, "second")
    keys = request.keys[0]
    assert lookup.names == tuple((0, key) for key in keys[7:11]), "the rest is on its way up"
    world.answer(lookup)
    (own,) = world.plan().errands
    assert isinstance(own, Fetch)
    assert own.names == lookup.names
    world.answer(own)
    assert world.manager.waits("second")
    world.answer(others)
    assert not world.manager.waits("second")
    assert ask(world, request).tokens == 44
    assert world.manager.metrics.lookups == lookups + 2


def test_a_request_does_not_wait_for_what_others_fetch_and_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches_module, "FETCH_BLOCKS_MAX", 7)
    world = with_tiers(groups=(FullAttention(4), StateSpace(4)), device_blocks=64)
    longer = A + text("more", 16)
    sunk(world, longer)
    _, (prefix, state) = fetching(world, A, "first")
    assert state.names[0][0] == 1
    _, own = fetching(world, longer, "second")
    for fetch in (prefix, *own):
        world.answer(fetch)
    assert not world.manager.waits("second"), "the state that the first one resumes from is of no use to it"
    assert world.manager.waits("first")


def test_all_fetches_together_get_half_of_the_host() -> None:
    world = with_tiers()
    for tokens in (A, text("b", 32), text("c", 32)):
        world.serve(tokens[0], tokens)
    small = with_tiers(host_blocks=10)
    small.below = dict(world.below)
    sizes = []
    for tokens in (A[:17], text("b", 32), text("c", 32)):
        _, lookup = looking(small, tokens, tokens[0])
        small.answer(lookup)
        sizes.append(sum(len(errand.slots) for errand in small.plan().errands if isinstance(errand, Fetch)))
    assert sizes == [4, 1, 0]


def test_what_is_being_stored_is_not_asked_for() -> None:
    world = with_tiers()
    world.prefill("other", A[:16])
    world.plan()
    request = world.add("r", A)
    world.manager.reserve(world.manager.match("r", 0, 32))
    (lookup,) = (errand for errand in world.plan().errands if isinstance(errand, Lookup))
    assert lookup.names == tuple((0, key) for key in request.keys[0][4:7])


def test_what_continues_blocks_that_are_still_being_stored_is_not_fetched() -> None:
    world = with_tiers()
    sunk(world)
    other = world.add("other", A[:16])
    world.admit(other, 0)
    world.compute(other)
    world.plan()
    world.add("r", A)
    world.manager.reserve(world.manager.match("r", 0, 32))
    (lookup,) = (errand for errand in world.plan().errands if isinstance(errand, Lookup))
    world.answer(lookup)
    assert not [errand for errand in world.plan().errands if isinstance(errand, Fetch)]


def test_a_request_that_gave_up_its_place_still_gets_what_it_asked_for() -> None:
    world = with_tiers(min_fetch_tokens=28)
    sunk(world)
    request, lookup = looking(world)
    world.manager.give_up("r")
    world.answer(lookup)
    (fetch,) = world.plan().errands
    world.answer(fetch)
    assert ask(world, request).tokens == 28


@pytest.mark.parametrize("groups", [(FullAttention(4),), HYBRID])
def test_only_what_is_beyond_the_host_is_asked_for(groups: tuple[FullAttention, ...]) -> None:
    world = with_tiers(groups=groups, device_blocks=64)
    store(world, A)
    world.fill_device()
    request = world.add("r", A + text("more", 9))
    assert ask(world, request).tokens == 32
    lookup = next(errand for errand in world.plan().errands if isinstance(errand, Lookup))
    assert set(lookup.names) == {(index, key) for index, keys in enumerate(request.keys) for key in keys[8:10]}


@pytest.mark.parametrize(
    ("device", "host", "waits"), [(0, 0, True), (5, 0, True), (6, 0, False), (0, 6, False), (2, 5, True)]
)
def test_what_the_device_and_the_host_have_is_not_worth_asking_for(device: int, host: int, waits: bool) -> None:
    world = with_tiers(min_fetch_tokens=8)
    if host:
        store(world, A[: 4 * host])
    world.add("r", A)
    assert world.manager.match("r", 4 * device, 32).waits == waits


def test_what_the_device_has_is_not_asked_for() -> None:
    world = with_tiers()
    request = world.add("r", A)
    world.manager.reserve(world.manager.match("r", 16, 32))
    (lookup,) = world.plan().errands
    assert isinstance(lookup, Lookup)
    assert lookup.names == tuple((0, key) for key in request.keys[0][4:7])


def test_of_a_long_prompt_the_beginning_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(below_module, "LOOKUP_BLOCKS_MAX", 3)
    request, lookup = looking(with_tiers())
    assert lookup.names == tuple((0, key) for key in request.keys[0][:3])


def test_what_others_compute_is_not_taken_for_what_is_on_its_way_up() -> None:
    world = with_tiers()
    sunk(world)
    request, (fetch,) = fetching(world)
    other = world.add("other", text("b", 16))
    world.admit(other, 0)
    world.compute(other)
    world.finish(other)
    world.answer(fetch, misses=range(7))
    world.finish(request)
    world.drain()
    assert not world.manager.metrics.not_stored, "nobody has computed what did not come"


def test_what_was_fetched_before_does_not_count_against_later_fetches() -> None:
    world = with_tiers(host_blocks=16)
    for tokens in (A, text("b", 32)):
        world.serve(tokens[0], tokens)
    forget(world)
    for tokens in (A, text("b", 32)):
        request, (fetch,) = fetching(world, tokens, tokens[0])
        assert len(fetch.slots) == 7
        world.answer(fetch)
        world.finish(request)


def test_what_a_reset_ended_was_not_missing_below() -> None:
    world = with_tiers()
    sunk(world)
    _, (fetch,) = fetching(world)
    world.reset()
    world.answer(fetch)
    assert world.manager.metrics.fetch_missed_blocks == 0


def test_a_fetch_is_late_when_anybody_still_waits_for_it() -> None:
    world = with_tiers()
    sunk(world)
    first, (fetch,) = fetching(world, name="first")
    second = world.add("second", A)
    ask(world, second)
    assert world.manager.waits("second")
    world.finish(first)
    world.report(Report(0, late=(fetch.id,)))
    assert world.manager.metrics.fetches_late == 1
    assert not world.manager.waits("second")


def test_old_blocks_of_windows_are_not_asked_for() -> None:
    world = with_tiers(groups=HYBRID, device_blocks=64)
    other = world.prefill("other", A)
    world.slide(other)  # before they are stored
    world.finish(other)
    for _ in range(4):
        world.plan()
        world.drain_copies()
    world.fill_device()
    request = world.add("r", A + text("more", 9))
    assert ask(world, request).tokens == 32
    lookup = next(errand for errand in world.plan().errands if isinstance(errand, Lookup))
    assert set(lookup.names) == {(index, key) for index, keys in enumerate(request.keys) for key in keys[8:10]}


@pytest.mark.parametrize(("below", "fetched"), [(5, 0), (6, 2), (7, 3)])
def test_what_the_tiers_have_beyond_the_host_must_be_worth_it(below: int, fetched: int) -> None:
    world = with_tiers(min_fetch_tokens=8)
    sunk(world, A[: 4 * below])
    store(world, A[:16])
    world.fill_device()
    request = world.add("r", A)
    match = ask(world, request)
    assert (match.tokens, match.waits) == (16, True)
    lookup = next(errand for errand in world.plan().errands if isinstance(errand, Lookup))
    world.answer(lookup, seconds=0.25)
    fetches = [errand for errand in world.plan().errands if isinstance(errand, Fetch)]
    assert sum(len(fetch.slots) for fetch in fetches) == fetched
    assert all(fetch.waited_s == 0.25 for fetch in fetches)
    assert world.manager.waits("r") == bool(fetched)


def test_keys_that_are_not_known_yet_are_not_looked_for() -> None:
    world = with_tiers()
    sunk(world)
    request = world.add("r", A)
    world.manager.reserve(world.manager.match("r", 0, 48))  # the tokens behind `A` are placeholders
    (lookup,) = world.plan().errands
    assert isinstance(lookup, Lookup)
    assert lookup.names == tuple((0, key) for key in request.keys[0])
    world.answer(lookup)
    (fetch,) = world.plan().errands
    assert isinstance(fetch, Fetch)
    assert len(fetch.names) == 8


@pytest.mark.parametrize("stored", [False, True])
def test_what_comes_to_the_host_while_it_is_looked_for_is_not_fetched(stored: bool) -> None:
    world = with_tiers()
    sunk(world)
    _, lookup = looking(world)
    other = world.add("other", A[:16])
    world.admit(other, 0)
    world.compute(other)
    world.plan()
    if stored:
        world.drain_copies()
    world.answer(lookup)
    (fetch,) = (errand for errand in world.plan().errands if isinstance(errand, Fetch))
    assert fetch.names == lookup.names[4:]


def test_a_request_whose_blocks_are_all_being_stored_does_not_wait() -> None:
    world = with_tiers()
    world.prefill("other", A)
    world.plan()
    request = world.add("r", A)
    world.manager.reserve(world.manager.match("r", 0, 32))
    assert not world.manager.waits("r")
    assert not world.manager.match("r", 0, 32).waits
    world.finish(request)


def test_an_engine_goes_on_stepping_when_a_lookup_is_answered() -> None:
    world = with_tiers()
    sunk(world)
    _, lookup = looking(world)
    world.answer(lookup)
    assert world.manager.busy


def test_what_has_come_may_be_evicted_again_once_the_request_was_matched_and_gave_up() -> None:
    world = with_tiers()
    sunk(world)
    request, (fetch,) = fetching(world)
    world.answer(fetch)
    assert ask(world, request).tokens == 28
    world.manager.give_up("r")
    assert world.manager.gauges().slots_pinned == 0


def test_an_engine_goes_on_stepping_while_something_is_to_be_asked_for() -> None:
    world = with_tiers()
    ask(world, world.add("r", A))
    assert world.manager.busy


def test_what_has_come_is_kept_while_the_rest_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches_module, "FETCH_BLOCKS_MAX", 3)
    world = with_tiers()
    sunk(world)
    request, fetches = fetching(world)
    world.answer(fetches[1])
    match = ask(world, request)
    assert (match.tokens, match.waits) == (0, True), "the beginning is not there yet"
    assert world.manager.gauges().slots_pinned == 3


def test_blocks_of_several_groups_come_as_one_chain_each() -> None:
    world = with_tiers(groups=HYBRID, events=True, device_blocks=64)
    sunk(world)
    request, (fetch,) = fetching(world)
    flight = world.manager._ledger.get(fetch.id)
    assert isinstance(flight, ledger.FetchEntry)
    assert flight.queued_tokens == 9 * 4 / 2, "each group brings its share of a token"
    world.manager.take_events()
    world.answer(fetch)
    full, window = (tuple(keys[:7]) for keys in request.keys)
    assert world.manager.take_events() == [Stored(0, full, None), Stored(1, window[5:], window[4])]


def test_what_is_missing_of_one_group_is_not_taken_for_that_of_another() -> None:
    world = with_tiers(groups=HYBRID, device_blocks=64)
    sunk(world)
    _, (fetch,) = fetching(world)
    world.answer(fetch, misses=[7])
    assert (world.cached_blocks(A, 0), world.cached_blocks(A, 1)) == (list(range(7)), [6])


def test_now_and_then_it_is_tried_although_it_does_not_seem_to_pay() -> None:
    world = with_tiers()
    sunk(world)
    world.manager.computed(1_000, 0.001)
    request, fetches = fetching(world)
    for fetch in fetches:
        world.answer(fetch, seconds=10.0)
    world.finish(request)
    asked = [ask(world, world.add(str(number), text(str(number), 32))).waits for number in range(RETRY_EVERY)]
    assert asked == [False] * (RETRY_EVERY - 1) + [True]


@pytest.mark.parametrize(
    ("misses", "runs"),
    [([], [(0, 7)]), ([0], [(1, 7)]), ([3], [(0, 3), (4, 7)]), ([2, 3, 6], [(0, 2), (4, 6)]), (range(7), [])],
)
def test_fetched_blocks_have_their_place_in_the_prefix(
    misses: Sequence[int], runs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes is cut where something is missing."""
    world = with_tiers()
    sunk(world)
    added: list[tuple[list[int], int, int, int]] = []
    monkeypatch.setattr(world.host_pool._policy, "add", lambda *chain: added.append(chain))
    request, (fetch,) = fetching(world)
    world.answer(fetch, misses=misses)
    slots = world.host_pool.slots_of(0, request.keys[0])
    assert added == [(slots[first:last], -1, 4 * first + 4, 4) for first, last in runs]
    assert slots.count(None) == 1 + len(misses), "slots of what has not come are free again"


@pytest.mark.parametrize(("slots", "fetched"), [(1, 1), (3, 1), (8, 4), (64, 7)])
def test_half_of_the_host_may_be_fetched_to_and_one_block_always(slots: int, fetched: int) -> None:
    world = with_tiers()
    sunk(world)
    small = with_tiers(host_blocks=slots)
    small.below = dict(world.below)
    _, (fetch,) = fetching(small)
    assert len(fetch.slots) == fetched


@pytest.mark.parametrize(("tokens", "waits"), [(4, False), (5, True)])
def test_one_token_is_always_left_to_compute(tokens: int, waits: bool) -> None:
    world = with_tiers()
    assert ask(world, world.add("r", A[:tokens])).waits == waits


def test_a_tier_that_is_late_for_somebody_who_does_not_wait_is_no_reason() -> None:
    world = with_tiers()
    sunk(world)
    request, (fetch,) = fetching(world)
    world.admit(request, 0)
    world.report(Report(0, late=(fetch.id,)))
    assert world.manager.metrics.fetches_late == 0
    world.preempt(request)
    assert set(world.match(request).missed) == {NotLoaded.STILL_STORING}


def test_what_it_takes_to_ask_counts_when_fetching_is_to_pay() -> None:
    """F19."""
    world = with_tiers()
    sunk(world)
    world.manager.computed(28, 0.5)
    request, lookup = looking(world)
    world.answer(lookup, seconds=10.0)
    for fetch in world.plan().errands:
        world.answer(fetch, seconds=0.001)
    world.finish(request)
    assert not ask(world, world.add("second", text("b", 32))).waits


@pytest.mark.parametrize("overdue", ["lookup", "fetch"])
def test_an_answer_that_nobody_waited_for_any_more_is_not_held_against_a_tier(overdue: str) -> None:
    """A rank was silent: that says nothing about what asking and fetching cost."""
    world = with_tiers()
    sunk(world)
    world.manager.computed(28, 0.5)
    request, lookup = looking(world)
    if overdue == "fetch":
        world.answer(lookup)
        world.plan()
    (errand,) = world.errands.values()
    for _ in range(int(ledger.OVERDUE_S)):
        world.manager.passed(1.0)
    world.answer(errand, misses=range(8), seconds=ledger.OVERDUE_S)
    world.finish(request)
    request, fetches = fetching(world, name="second")
    for fetch in fetches:
        world.answer(fetch, seconds=0.001)
    world.finish(request)
    assert ask(world, world.add("third", text("b", 32))).waits


def test_what_has_come_is_kept_until_the_request_is_matched_again() -> None:
    """F11, below host memory."""
    world = with_tiers(host_blocks=14, pin_budget=8)
    sunk(world)
    request, fetches = fetching(world)
    for fetch in fetches:
        world.answer(fetch)
    store(world, text("b", 64))
    assert ask(world, request).tokens == 28


def searching(when: str) -> tuple[World, FakeRequest]:
    """A request that waits for a lookup, for a fetch, or for being matched again."""
    world = with_tiers()
    sunk(world)
    if when == "looking":
        return world, looking(world)[0]
    request, (fetch,) = fetching(world)
    if when == "fetched":
        world.answer(fetch)
    return world, request


@pytest.mark.parametrize("how", ["finish", "preempt"])
@pytest.mark.parametrize("when", ["looking", "fetching", "fetched"])
def test_a_request_may_end_or_start_again_while_it_waits(when: str, how: str) -> None:
    """F16, below host memory."""
    world, request = searching(when)
    if how == "finish":
        world.finish(request)
    else:
        world.preempt(request)
        assert not world.manager.waits("r")
    for errand in list(world.errands.values()):
        world.answer(errand)
    world.drain()
    assert world.manager.gauges().slots_pinned == 0


@pytest.mark.parametrize("when", ["looking", "fetching", "fetched"])
def test_a_reset_ends_every_search(when: str) -> None:
    """F9: nothing that was there before is there after."""
    world, request = searching(when)
    world.reset()
    for errand in list(world.errands.values()):
        world.answer(errand)
    assert not ask(world, request).waits
    assert ask(world, request).tokens == 0
    world.drain()
    assert not world.below
    assert world.cached_blocks(A) == []


def test_what_was_going_to_be_asked_for_is_not_asked_for_after_a_reset() -> None:
    world = with_tiers()
    assert ask(world, world.add("r", A)).waits
    world.reset()
    assert [type(errand) for errand in world.plan().errands] == [Clear]


def test_tiers_are_emptied_once_and_before_anything_else_is_asked_of_them() -> None:
    """F9: so nothing that is asked for after a reset can find what was there before."""
    world = with_tiers()
    world.serve("before", A)
    world.reset()
    assert world.manager.busy
    request = world.add("r", A)
    assert ask(world, request).waits
    clear, lookup = world.plan().errands
    assert (type(clear), type(lookup)) == (Clear, Lookup)
    world.answer(lookup)
    store(world, text("b", 16))
    assert not ask(world, request).waits
    assert [type(errand) for errand in world.errands.values()] == [Clear, Lookup, Sink], "nobody waits for the clear"
    world.drain()
    assert not world.manager.metrics.not_sunk
    assert len(world.below) == 4


def test_a_reset_of_the_host_alone_leaves_the_tiers_as_they_are() -> None:
    world = with_tiers()
    world.serve("before", A)
    world.manager.reset(below=False)
    world.pool.reset()
    assert not world.plan().errands
    assert ask(world, world.add("r", A)).waits
    assert world.below


def test_every_reset_empties_the_tiers_but_two_before_one_plan_do_it_once() -> None:
    """F9: what sank between two resets is of weights that are gone."""
    world = with_tiers()
    world.reset()
    assert [type(errand) for errand in world.plan().errands] == [Clear]
    world.reset()
    world.reset()
    assert [type(errand) for errand in world.plan().errands] == [Clear]
    assert not world.plan().errands


def test_a_clear_that_a_reset_of_the_host_follows_is_still_due() -> None:
    world = with_tiers()
    world.reset()
    world.manager.reset(below=False)
    assert [type(errand) for errand in world.plan().errands] == [Clear]


def test_what_somebody_computed_while_it_was_on_its_way_up_is_stored_if_it_does_not_come() -> None:
    world = with_tiers()
    sunk(world)
    request, (fetch,) = fetching(world)
    world.report(Report(0, late=(fetch.id,)))
    ask(world, request)
    world.admit(request)
    world.compute(request)
    world.finish(request)
    world.answer(fetch, misses=range(7))
    world.drain()
    assert world.cached_blocks(A) == list(range(8))
    assert not world.manager.metrics.not_stored


def relied_on() -> tuple[World, Fetch]:
    """A fetch of blocks that somebody has computed meanwhile, and not stored because they are on their way up."""
    world = with_tiers()
    sunk(world)
    request, (fetch,) = fetching(world)
    world.report(Report(0, late=(fetch.id,)))
    ask(world, request)
    world.admit(request)
    world.compute(request)
    world.finish(request)
    return world, fetch


def test_what_did_not_come_is_stored_with_as_many_attempts_as_anything_else() -> None:
    world, fetch = relied_on()
    world.drain_copies()
    world.answer(fetch, misses=range(7))
    attempts = 0
    while world.manager.busy:
        attempts += bool(world.plan().stores)
        for pending in list(world.pending.values()):
            world.run(pending.copy, why="no")
    assert attempts == ATTEMPTS_MAX
    assert world.manager.metrics.not_stored[NotStored.COPY_FAILED] == 8


def test_what_left_its_window_while_it_was_on_its_way_up_is_stored_if_it_does_not_come() -> None:
    world = with_tiers(groups=HYBRID, device_blocks=64)
    sunk(world)
    request, (fetch,) = fetching(world)
    world.report(Report(0, late=(fetch.id,)))
    ask(world, request)
    world.admit(request)
    world.compute(request)
    world.slide(request)
    world.plan()
    world.drain_copies()
    world.answer(fetch, misses=range(9))
    world.plan()
    world.drain_copies()
    assert world.cached_blocks(A, 1) == [5, 7], "block 5 is not part of the request any more, and was on its way up"
    assert world.manager.metrics.not_stored == {NotStored.OUT_OF_WINDOW: 5}
    world.finish(request)
    world.drain()
    assert (world.cached_blocks(A, 0), world.cached_blocks(A, 1)) == (list(range(8)), [5, 6, 7])


def test_what_did_not_come_because_of_a_reset_is_counted() -> None:
    world, fetch = relied_on()
    world.plan()
    world.drain_copies()
    world.reset()
    world.answer(fetch)
    assert world.manager.metrics.not_stored == {NotStored.RESET: 7}


def test_what_did_not_come_and_is_gone_from_the_device_is_counted() -> None:
    world = with_tiers(device_blocks=8)
    sunk(world)
    request, (fetch,) = fetching(world)
    world.report(Report(0, late=(fetch.id,)))
    ask(world, request)
    world.admit(request)
    world.compute(request)
    world.finish(request)
    world.plan()
    world.drain_copies()
    world.fill_device()
    world.answer(fetch, misses=range(7))
    world.drain()
    assert world.manager.metrics.not_stored[NotStored.EVICTED_FROM_DEVICE] == 7


def test_one_prompt_does_not_drive_everything_else_out_of_the_host() -> None:
    world = with_tiers(host_blocks=8)
    sunk(world)
    _, (fetch,) = fetching(world)
    assert len(fetch.slots) == 4


def test_large_fetches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches_module, "FETCH_BLOCKS_MAX", 3)
    world = with_tiers()
    sunk(world)
    request, fetches = fetching(world)
    assert [len(fetch.slots) for fetch in fetches] == [3, 3, 1]
    for fetch in reversed(fetches):
        assert world.manager.waits("r")
        world.answer(fetch)
    assert ask(world, request).tokens == 28


def test_as_many_search_at_a_time_as_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(below_module, "SEARCHES_MAX", 1)
    world = with_tiers()
    looking(world)
    second = ask(world, world.add("second", text("b", 32)))
    assert not second.waits
    assert second.missed[NotLoaded.TIER_NOT_ASKED] == 28, "that nobody asked is said (F4)"
    assert world.manager.gauges().searches == 1


def test_nothing_is_fetched_for_a_request_that_has_stopped_waiting() -> None:
    world = with_tiers()
    sunk(world)
    request, lookup = looking(world)
    world.finish(request)
    world.answer(lookup)
    assert not world.plan().errands


def test_what_a_reset_ended_says_nothing_about_what_fetching_costs() -> None:
    world = with_tiers()
    sunk(world)
    world.manager.computed(1_000, 0.001)
    _, (fetch,) = fetching(world)
    world.reset()
    world.answer(fetch, seconds=10.0)
    assert ask(world, world.add("second", text("b", 32))).waits


def test_an_engine_may_go_on_without_waiting() -> None:
    world = with_tiers()
    sunk(world)
    request, (fetch,) = fetching(world)
    world.admit(request)
    assert not world.manager.waits("r")
    world.answer(fetch)
    world.compute(request)
    world.finish(request)
    world.drain()


def test_what_does_not_pay_is_not_asked_for() -> None:
    """F19, below host memory."""
    world = with_tiers()
    sunk(world)
    world.manager.computed(1_000, 0.001)
    request, fetches = fetching(world)
    for fetch in fetches:
        world.answer(fetch, seconds=10.0)
    world.admit(request)
    world.finish(request)
    second = ask(world, world.add("second", text("b", 32)))
    assert not second.waits
    assert second.missed == {NotLoaded.TIER_NOT_ASKED: 28}


def test_waiting_behind_other_fetches_is_not_held_against_a_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """F19: what counts is the rate of the tier. Found by replaying a trace: tiers that paid were given up."""
    monkeypatch.setattr(fetches_module, "FETCH_BLOCKS_MAX", 1)
    world = with_tiers()
    sunk(world)
    world.manager.computed(28, 1.0)
    request, fetches = fetching(world)
    for position, fetch in enumerate(fetches):
        world.answer(fetch, seconds=0.1 * (position + 1))  # one behind the other: 40 tokens a second in all
    world.admit(request)
    world.finish(request)
    assert ask(world, world.add("second", text("b", 32))).waits, "40 tokens a second are faster than 28"


def test_fetches_that_are_over_do_not_make_later_ones_look_fast() -> None:
    """F19: a tier that has become slow is noticed."""
    world = with_tiers(host_blocks=256, device_blocks=256)
    prompts = [text(name, 32) for name in "abcd"]
    for tokens in prompts:
        world.serve(tokens[0], tokens)
    forget(world)
    world.manager.computed(18, 1.0)
    for tokens, seconds in zip(prompts, (0.01, 0.01, 0.01, 10.0), strict=True):
        request, fetches = fetching(world, tokens, tokens[0])
        for fetch in fetches:
            world.answer(fetch, seconds=seconds)
        world.finish(request)
    assert not ask(world, world.add("next", text("e", 32))).waits, "112 tokens in 10 seconds: 18 a second are faster"
