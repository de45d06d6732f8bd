"""Tiers below an index that several engines share: who waits, who goes away, and what nobody waits for."""

from __future__ import annotations

import pytest

from kvtide.core import BelowConfig, FullAttention, NotLoaded
from kvtide.core.index.calls import Again, Drop, Found, LookUp
from kvtide.core.index.look_ups import AGAIN_S, LATE_S
from kvtide.core.index.shared import SharedIndex
from kvtide.core.index.waiting import UNASKED_MAX, UNASKED_S
from kvtide.core.ledger import OVERDUE_S
from kvtide.core.messages import Fetch, Lookup
from tests.core.index.bench import SIZE, config_of
from tests.core.index.deep import DeepBench, deep_bench, deep_config, deep_engine
from tests.memory_node import MemoryNode, local_index

FULL = (FullAttention(SIZE),)
REMOTE = "remote, answered at once"


@pytest.fixture
def bench() -> DeepBench:
    bench = deep_bench(REMOTE, FULL)
    bench.sink("a", 4)
    bench.forget()
    return bench


def begin_fetch(bench: DeepBench) -> Fetch:
    bench.answer(*bench.begun(Lookup))
    (fetch,) = bench.begun(Fetch)
    assert isinstance(fetch, Fetch)
    return fetch


def sent(bench: DeepBench, kind: type) -> list[object]:
    assert bench.link is not None
    return [call for _, call in bench.link.sent if isinstance(call, kind)]


@pytest.mark.parametrize("ends", ["at once", "later"])
def test_an_engine_that_goes_away_while_its_fetch_runs_leaves_nothing_behind(bench: DeepBench, ends: str) -> None:
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    fetch = begin_fetch(bench)
    link = bench.link
    assert link is not None
    local, shared, life = link.space.local, link.space.shared, link.life
    assert life is not None
    assert shared.counts()["waiting"] == 1
    link.go_away()
    assert (shared.counts()["waiting"], local.below.searches) == (0, 0)
    if ends == "at once":
        bench.index.receive()  # which says that nothing is held
    bench.answer(fetch)
    fill = local.fill()
    assert (fill.free + fill.cached, fill.pinned) == (16, 0)


def test_what_another_engine_waits_for_goes_on_when_the_first_one_goes() -> None:
    node = MemoryNode(deep_config(FULL, 16))
    first, second = deep_engine(node, FULL), deep_engine(node, FULL)
    first.sink("a", 4)
    first.forget()
    second.kept = first.kept
    for engine in (first, second):
        assert engine.begin(engine.request("a", 4)).waits
    request = second.request("a", 4)
    assert second.begin(request).waits
    assert first.link is not None
    first.link.go_away()
    second.errands += first.errands
    second.settle()
    assert second.until(request).tokens == 4 * SIZE


def test_a_node_that_says_nothing_while_a_request_waits_is_not_waited_for(bench: DeepBench) -> None:
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    link = bench.link
    assert link is not None
    link.later = True
    bench.index.plan()  # asks again
    for _ in range(3):
        bench.index.passed(LATE_S / 2)
    match = bench.index.look_up(request, 0, 4 * SIZE + 1, lambda _: True)
    assert (match.waits, match.missed) == (False, {NotLoaded.NODE_LATE: 4 * SIZE + 1})
    bench.finish(request)
    link.later = False
    bench.settle()
    assert bench.local.below.searches == 0
    assert bench.fill()[2] == 0


def test_a_long_step_of_the_engine_is_not_the_nodes_fault(bench: DeepBench) -> None:
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    bench.index.receive()
    bench.index.passed(10 * LATE_S)
    assert bench.begin(request).waits
    bench.finish(request)


def test_one_that_waits_is_asked_for_once_in_a_step_and_not_before_the_last_answer(bench: DeepBench) -> None:
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    assert bench.link is not None
    bench.link.later = True
    before = len(sent(bench, Again))
    for _ in range(3):
        bench.index.plan()
        assert bench.index.look_up(request, 0, 4 * SIZE + 1, lambda _: True).waits
    assert len(sent(bench, Again)) == before + 1
    bench.finish(request)


def test_an_engine_that_steps_quickly_does_not_ask_the_node_in_every_step(bench: DeepBench) -> None:
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    before = len(sent(bench, Again))
    for _ in range(10):
        bench.index.passed(AGAIN_S / 4)
        assert bench.begin(request).waits
    assert len(sent(bench, Again)) - before in (2, 3)
    bench.finish(request)


@pytest.mark.parametrize("answered", [True, False])
def test_a_look_up_that_nobody_wants_any_more_is_dropped_at_the_node(bench: DeepBench, answered: bool) -> None:
    assert bench.link is not None
    request = bench.request("a", 4)
    bench.link.later = not answered
    bench.index.look_up(request, 0, 4 * SIZE + 1, lambda _: True)
    bench.index.drop(request)
    for _ in range(3):
        bench.step()
    assert len(sent(bench, Drop)) == 1
    assert bench.link.space.shared.counts()["waiting"] == 0
    assert bench.link.space.shared.calls_unknown == 0


def test_a_number_that_is_given_twice_keeps_nothing_of_the_first(bench: DeepBench) -> None:
    assert bench.link is not None
    shared, life = bench.link.space.shared, bench.link.life
    assert life is not None
    call = LookUp(77, bench.request("a", 4).keys, 0, 4 * SIZE + 1)
    for _ in range(2):
        assert shared.handle(life, call) == Found(77, waits=True)
    assert shared.counts()["waiting"] == 1
    shared.handle(life, Drop(77))
    assert shared.counts()["waiting"] == bench.local.below.searches == 0


def test_whoever_asks_again_for_what_is_not_known_has_found_nothing(bench: DeepBench) -> None:
    assert bench.link is not None
    shared, life = bench.link.space.shared, bench.link.life
    assert life is not None
    assert shared.handle(life, Again(77)) == Found(77)
    assert shared.calls_unknown == 1
    shared.handle(life, Drop(77))
    assert shared.calls_unknown == 1, "it was over just before"


def test_what_computing_costs_goes_to_the_node_and_decides_whether_waiting_pays(bench: DeepBench) -> None:
    bench.index.computed(1000, 0.001)
    request = bench.request("a", 4)
    bench.begin(request)
    fetch = begin_fetch(bench)
    bench.answer(fetch, seconds=5.0)
    assert bench.until(request).tokens == 4 * SIZE
    bench.finish(request)
    bench.forget()
    other = bench.request("a", 4)
    match = bench.begin(other)
    assert (match.waits, match.missed) == (False, {NotLoaded.TIER_NOT_ASKED: 4 * SIZE})
    first, second = sent(bench, LookUp)[-2:]
    assert isinstance(first, LookUp)
    assert isinstance(second, LookUp)
    assert (first.computed_tokens, first.computed_s) == (1000, 0.001)
    assert second.computed_tokens == 0, "it is told once"
    bench.finish(other)


def test_a_tier_that_never_answers_is_waited_for_only_so_long(bench: DeepBench) -> None:
    assert bench.link is not None
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    bench.begun(Lookup)
    for _ in range(int(OVERDUE_S)):
        bench.link.space.shared.passed(1.0)
    assert bench.until(request).missed == {NotLoaded.TIER_LATE: 4 * SIZE}
    bench.finish(request)


def test_f29_what_has_come_up_for_an_engine_that_stands_still_is_not_kept_for_ever(bench: DeepBench) -> None:
    assert bench.link is not None
    shared, life = bench.link.space.shared, bench.link.life
    assert life is not None
    keys = bench.request("a", 4).keys
    assert shared.handle(life, LookUp(77, keys, 0, 4 * SIZE + 1)) == Found(77, waits=True)
    shared.passed(1000 * UNASKED_S)
    fetch = begin_fetch(bench)
    bench.answer(fetch)
    for _ in range(int(UNASKED_S) - 1):
        shared.passed(1000.0)  # the node stood still itself
    assert (shared.waits, bench.local.fill().pinned) == (True, 4)
    shared.passed(1.0)
    assert (shared.waits, bench.local.fill().pinned) == (False, 0)
    assert shared.handle(life, Again(77)) == Found(77)


def test_f29_an_engine_that_never_asks_again_has_so_many_look_ups_and_costs_the_others_none(bench: DeepBench) -> None:
    assert bench.link is not None
    shared, life = bench.link.space.shared, bench.link.life
    assert life is not None
    keys = bench.request("nobody has it", 4).keys
    other = life + 1
    shared.attach(other, 16)
    assert shared.handle(other, LookUp(0, keys, 0, 4 * SIZE + 1)) == Found(0, waits=True)
    for number in range(UNASKED_MAX + 50):
        assert shared.handle(life, LookUp(number, keys, 0, 4 * SIZE + 1)) == Found(number, waits=True)
        bench.answer(*bench.begun(Lookup))  # nothing is below
    assert shared.counts()["waiting"] == UNASKED_MAX + 1
    unknown = shared.calls_unknown
    assert shared.handle(life, Again(49)) == Found(49)
    assert shared.calls_unknown == unknown + 1
    missed = {NotLoaded.NOT_CACHED: 4 * SIZE}
    assert shared.handle(life, Again(50)) == Found(50, missed=missed)
    assert shared.handle(other, Again(0)) == Found(0, missed=missed)


def test_what_comes_up_to_slots_that_an_engine_cannot_read_yet_is_a_miss_for_it() -> None:
    node = MemoryNode(deep_config(FULL, 16))
    bench, small = deep_engine(node, FULL), deep_engine(node, FULL, slots=1)
    bench.sink("a", 4)
    bench.forget()
    small.kept = bench.kept
    request = small.request("a", 4)
    match = small.found_below(request)
    assert (match.tokens, match.missed) == (0, {NotLoaded.NOT_CACHED: 4 * SIZE + 1})
    small.finish(request)
    assert small.fill()[2] == 0


def test_at_the_end_what_tiers_should_have_sinks_from_a_shared_index() -> None:
    on_evict = BelowConfig(on_evict=frozenset({"all"}))
    ending = deep_bench(REMOTE, FULL, below=on_evict)
    assert ending.link is not None
    shared = ending.link.space.shared
    ending.store("a", 0, 4)
    ending.settle()
    assert not ending.kept[0]
    shared.drain()
    ending.settle()
    assert len(ending.kept[0]) == 4
    assert shared.sinking_blocks == 0


def test_whether_anything_is_below_is_known() -> None:
    assert SharedIndex(local_index(deep_config(FULL, 4))).has_tiers
    assert not SharedIndex(local_index(config_of(FULL, 4))).has_tiers


def test_a_look_up_that_waits_for_a_tier_finds_nothing_after_a_clear(bench: DeepBench) -> None:
    request = bench.request("a", 4)
    assert bench.begin(request).waits
    fetch = begin_fetch(bench)
    assert bench.link is not None
    shared = bench.link.space.shared
    shared.clear()
    assert shared.counts()["waiting"] == 0
    bench.answer(fetch)
    match = bench.until(request)
    assert (match.tokens, match.missed) == (0, {NotLoaded.NOT_CACHED: 4 * SIZE}), "F4: counted, though it was forgotten"
    bench.finish(request)
    bench.settle()
    assert shared.counts()["cached"] == 0
    assert shared.counts()["free"] == bench.link.space.local.host.slots
