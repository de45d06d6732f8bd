"""What is below host memory: found, brought up and leased, whether the index is in this process or elsewhere."""

from __future__ import annotations

import pytest

from kvtide.core import FullAttention, NotLoaded, SlidingWindow
from kvtide.core.groups import NULL_BLOCK
from kvtide.core.ledger import FetchEntry
from kvtide.core.messages import Fetch, Lookup, Sink
from tests.core.index.bench import KINDS, SIZE
from tests.core.index.deep import DeepBench, deep_bench

FULL = (FullAttention(SIZE),)
WINDOW = (FullAttention(SIZE), SlidingWindow(2 * SIZE, 4 * SIZE))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bench(kind: str) -> DeepBench:
    return deep_bench(kind, FULL)


def check_at_rest(bench: DeepBench) -> None:
    bench.settle()
    free, cached, pinned = bench.fill()
    assert (free + cached, pinned) == (16, 0)
    assert bench.local.below.searches == 0


def test_what_has_sunk_is_brought_up_and_found(bench: DeepBench) -> None:
    bench.sink("a", 4)
    bench.forget()
    request = bench.request("a", 4)
    match = bench.found_below(request)
    assert (match.tokens, match.missed) == (4 * SIZE, {})
    lease = bench.index.lease(match)
    assert sorted(lease.slots) == sorted(slot for piece in match.pieces for slot in piece.slots)
    assert bench.fill()[2] == 4
    bench.index.release(lease)
    bench.finish(request)
    check_at_rest(bench)


def test_what_is_not_below_is_a_miss_and_is_asked_for_once(bench: DeepBench) -> None:
    request = bench.request("a", 4)
    match = bench.found_below(request)
    assert (match.tokens, match.missed) == (0, {NotLoaded.NOT_CACHED: 4 * SIZE})
    assert bench.found_below(request).tokens == 0
    assert bench.local.below._metrics.lookups == 1
    bench.finish(request)
    check_at_rest(bench)


def test_what_is_on_the_host_and_what_is_below_are_found_together(bench: DeepBench) -> None:
    bench.sink("a", 6)
    bench.forget()
    bench.store("a", 0, 2)
    request = bench.request("a", 6)
    assert bench.found_below(request).tokens == 6 * SIZE
    bench.finish(request)
    check_at_rest(bench)


def test_a_block_of_which_a_part_is_missing_is_not_there(bench: DeepBench) -> None:
    bench.sink("a", 4)
    bench.forget()
    keys = bench.chain("a", 0, 4).keys
    bench.kept[1].discard((0, keys[2]))
    request = bench.request("a", 4)
    assert bench.found_below(request).tokens == 2 * SIZE
    bench.finish(request)
    check_at_rest(bench)


def test_a_part_that_is_gone_when_it_is_fetched_makes_the_block_a_miss(bench: DeepBench) -> None:
    bench.sink("a", 4)
    bench.forget()
    request = bench.request("a", 4)
    bench.begin(request)
    (lookup,) = bench.begun(Lookup)
    bench.answer(lookup)
    (fetch,) = bench.begun(Fetch)
    bench.kept[0].discard((0, bench.chain("a", 0, 4).keys[1]))
    bench.answer(fetch)
    assert bench.until(request).tokens == SIZE
    bench.finish(request)
    check_at_rest(bench)


def test_a_fetch_that_is_late_is_a_miss_and_what_comes_after_all_is_for_the_next(bench: DeepBench) -> None:
    bench.sink("a", 4)
    bench.forget()
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    (lookup,) = bench.begun(Lookup)
    bench.answer(lookup)
    (fetch,) = bench.begun(Fetch)
    assert bench.begin(request).waits
    bench.late(fetch)
    match = bench.until(request)
    assert (match.tokens, match.missed) == (0, {NotLoaded.TIER_LATE: 4 * SIZE})
    bench.finish(request)
    assert bench.fill()[0] + bench.fill()[1] == 12, "the tier may still write to these slots"
    bench.answer(fetch)
    again = bench.request("a", 4)
    assert bench.until(again).tokens == 4 * SIZE
    bench.finish(again)
    check_at_rest(bench)


@pytest.mark.parametrize("when", ["looking", "fetching", "fetched"])
def test_a_request_that_ends_while_it_waits_keeps_nothing(bench: DeepBench, when: str) -> None:
    bench.sink("a", 4)
    bench.forget()
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    (lookup,) = bench.begun(Lookup)
    if when != "looking":
        bench.answer(lookup)
        (fetch,) = bench.begun(Fetch)
        if when == "fetched":
            bench.answer(fetch)
    bench.finish(request)
    check_at_rest(bench)


def test_two_that_need_the_same_blocks_wait_for_one_fetch(bench: DeepBench) -> None:
    bench.sink("a", 4)
    bench.forget()
    first, second = bench.request("a", 4), bench.request("a", 4)
    bench.begin(first)
    bench.answer(*bench.begun(Lookup))
    (fetch,) = bench.begun(Fetch)
    assert bench.begin(second).waits
    assert bench.begun(Lookup) == []
    assert bench.begun(Fetch) == [fetch]
    bench.answer(fetch)
    for request in (first, second):
        assert bench.until(request).tokens == 4 * SIZE
        bench.finish(request)
    check_at_rest(bench)


@pytest.mark.parametrize("ended", [True, False])
def test_what_was_to_come_from_below_and_has_not_is_stored_after_all(bench: DeepBench, ended: bool) -> None:
    bench.sink("a", 3)
    bench.forget()
    request = bench.request("a", 3)
    bench.begin(request)
    bench.answer(*bench.begun(Lookup))
    (fetch,) = bench.begun(Fetch)
    chain = bench.chain("a", 0, 3)
    if not ended:
        chain.blocks[1] = NULL_BLOCK  # a request that goes on asks again for what the device has, and only for that
    (grant,) = bench.ask(chain, touch=ended)
    assert (grant.runs, grant.reached) == ([], 3), "it is on its way up"
    for kept in bench.kept:
        kept.discard((0, bench.chain("a", 0, 3).keys[1]))
    bench.answer(fetch)
    unkept = bench.step() + bench.step()
    assert [chain.keys for chain in unkept] == [bench.chain("a", 1, 2).keys]
    bench.finish(request)
    check_at_rest(bench)


def test_too_few_tokens_are_not_looked_for(kind: str) -> None:
    bench = deep_bench(kind, FULL, min_fetch_tokens=3 * SIZE)
    bench.sink("a", 4)
    bench.forget()
    short, long = bench.request("a", 2), bench.request("a", 4)
    assert bench.found_below(short).tokens == 0
    assert bench.found_below(long).tokens == 4 * SIZE
    bench.finish(short)
    bench.finish(long)
    check_at_rest(bench)


def test_too_few_tokens_beyond_what_the_host_has_are_not_fetched(kind: str) -> None:
    bench = deep_bench(kind, FULL, min_fetch_tokens=2 * SIZE)
    bench.sink("a", 6)
    bench.forget()
    bench.store("a", 0, 3)
    bench.settle()
    for kept in bench.kept:
        kept.difference_update((0, key) for key in bench.chain("a", 4, 6).keys)
    request = bench.request("a", 6)
    assert bench.found_below(request).tokens == 3 * SIZE
    assert bench.local.below._metrics.fetched_blocks == 0
    bench.finish(request)
    check_at_rest(bench)


def test_what_the_device_has_is_not_fetched_and_the_parent_of_the_rest_is_known(kind: str) -> None:
    bench = deep_bench(kind, WINDOW, slots=32)
    for group in (0, 1):
        bench.store("a", 0, 8 // (group + 1), group)
    bench.settle()
    bench.forget(32)
    request = bench.request("a", 8)
    assert bench.index.look_up(request, 3 * SIZE, 8 * SIZE + 1, lambda _: True).waits
    bench.index.wait(request, bench.index.look_up(request, 3 * SIZE, 8 * SIZE + 1, lambda _: True))
    (lookup,) = bench.begun(Lookup)
    assert isinstance(lookup, Lookup)
    first = bench.request("a", 8)
    assert lookup.names[0] == (0, first.keys[0][3])
    assert {name for name in lookup.names if name[0] == 1} == {(1, key) for key in first.keys[1][1:4]}
    bench.answer(lookup)
    fetches = bench.begun(Fetch)
    entries = [entry for entry in bench.local.ledger if isinstance(entry, FetchEntry)]
    parents = {chain.parent for entry in entries for chain in entry.chains}
    assert parents <= {*first.keys[0], *first.keys[1]}
    bench.answer(*fetches)
    bench.index.drop(request)
    bench.settle()
    assert bench.fill()[2] == 0


def test_what_sinks_is_kept_until_every_rank_has_it(kind: str) -> None:
    bench = deep_bench(kind, FULL, slots=8)
    bench.store("a", 0, 1)
    (sink,) = bench.begun(Sink)
    assert bench.fill()[2] == 1
    bench.answer(sink, ranks=[0, 1])
    assert bench.fill()[2] == 0
