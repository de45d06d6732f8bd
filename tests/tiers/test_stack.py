"""The stack: all tiers of a rank as one place, with deadlines on everything a request waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kvtide.copy import HostArena
from kvtide.copy.slot_places import SlotPlaces
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Answer, Clear, Fetch, Lookup, Sink
from kvtide.core.share import ALL, Share
from kvtide.tiers.base import HIT, MISS, CallResult, Item, KeyResult, Tier, TierKey, TierStats, Verdict
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.memory import MemoryBackend
from kvtide.tiers.queued import QueuedTier
from kvtide.tiers.stack import Level, TierStack, open_stack, random_salt, tier_key
from tests.tiers.support import NAMESPACE

NAMES = ((0, b"a"), (0, b"b"), (1, b"a"))
SLOTS = (2, 0, 1)


class ScriptedTier(Tier):
    """Keeps bytes in a dictionary, and answers when it is told to."""

    def __init__(self) -> None:
        self.records: dict[TierKey, bytes] = {}
        self.calls: dict[int, tuple[str, Sequence[object]]] = {}
        self.answers: list[CallResult] = []
        self.silent = False
        self.refuses = False
        self.fails = False
        self.closed = False

    def _take(self, ticket: int, call: str, argument: Sequence[object]) -> bool:
        if self.refuses or self.closed:
            return False
        self.calls[ticket] = call, argument
        if not self.silent:
            self.speak()
        return True

    def speak(self) -> None:
        """Answer all calls that are waiting."""
        for ticket, (call, argument) in list(self.calls.items()):
            del self.calls[ticket]
            results = [KeyResult(Verdict.FAILED, "told to")] * max(1, len(argument))
            if not self.fails:
                results = [self._do(call, item) for item in argument] or [self._clear()]
            self.answers.append(CallResult(ticket, tuple(results)))

    def _do(self, call: str, item: object) -> KeyResult:
        if isinstance(item, Item) and call == "put":
            self.records[item.key] = bytes(item.buffer)
            return HIT
        key = item.key if isinstance(item, Item) else item
        assert isinstance(key, bytes)
        if isinstance(item, Item) and key in self.records:
            if item.buffer.nbytes != len(self.records[key]):
                return MISS
            item.buffer[:] = self.records[key]
        return HIT if key in self.records else MISS

    def _clear(self) -> KeyResult:
        self.records.clear()
        return HIT

    def lookup(self, ticket: int, keys: Sequence[TierKey]) -> bool:
        return self._take(ticket, "lookup", keys)

    def put(self, ticket: int, items: Sequence[Item]) -> bool:
        return self._take(ticket, "put", items)

    def get(self, ticket: int, items: Sequence[Item]) -> bool:
        return self._take(ticket, "get", items)

    def clear(self, ticket: int) -> bool:
        return self._take(ticket, "clear", ())

    def poll(self) -> list[CallResult]:
        answers, self.answers = self.answers, []
        return answers

    def wait(self, timeout_s: float) -> bool:
        return bool(self.answers)

    def close(self, timeout_s: float = 5.0) -> bool:
        self.closed = True
        return not self.calls

    def stats(self) -> TierStats:
        return TierStats()


class Bench:
    """A stack of scripted tiers over three slots, and a clock that stands still."""

    def __init__(
        self,
        *levels: Level,
        new_salt: Callable[[], bytes] = random_salt,
        share: Share = ALL,
        unpacked: UnpackedRows | None = None,
    ) -> None:
        self.arena = HostArena(3, 4)
        self.memory = self.arena.memory
        self.now_s = 100.0
        self.stack = TierStack(
            levels,
            lambda slot: memoryview(self.memory[slot]),
            clock=lambda: self.now_s,
            new_salt=new_salt,
            share=share,
            places=None if unpacked is None else SlotPlaces(self.arena, unpacked),
        )

    def hits(self, errand: Lookup | Fetch | Sink | Clear) -> tuple[int, ...] | None:
        """Do an errand; return its hits, or None if it is not over."""
        self.stack.start(errand)
        answers, _ = self.stack.poll()
        return answers[0].hits if answers else None

    def hits_at_last(self, fetch: Fetch) -> tuple[int, ...]:
        """Do a fetch that asks more than once, as each answer is heard."""
        self.stack.start(fetch)
        polled = (self.stack.poll()[0] for _ in range(8))
        return next(answers[0].hits for answers in polled if answers)

    def fill(self, *values: int) -> None:
        self.memory[:] = np.array(values, dtype=np.uint8)[:, None]


@pytest.fixture
def near() -> ScriptedTier:
    return ScriptedTier()


@pytest.fixture
def far() -> ScriptedTier:
    return ScriptedTier()


def record(tier: ScriptedTier, *positions: int) -> None:
    for position in positions:
        tier.records[tier_key(NAMES[position])] = bytes([position + 1] * 4)


def test_groups_have_keys_of_their_own() -> None:
    assert len({tier_key(name) for name in NAMES}) == 3


def test_a_block_that_does_not_pack_sinks_as_it_is_and_comes_back_to_a_row(near: ScriptedTier) -> None:
    unpacked = UnpackedRows(HostArena(2, 8), 3)
    assert unpacked.place(np.array([SLOTS[1]])) == []
    unpacked.arena.memory[0] = range(8)
    bench = Bench(Level(near), unpacked=unpacked)
    bench.fill(1, 2, 3)
    assert bench.hits(Sink(1, NAMES, SLOTS)) == (0, 1, 2)
    assert near.records[tier_key(NAMES[1])] == bytes(range(8))
    unpacked.forget(np.array([SLOTS[1]]))
    unpacked.arena.memory[:] = 0
    bench.fill(0, 0, 0)
    other = (1, 2, 0)
    assert bench.hits_at_last(Fetch(2, NAMES, other)) == (0, 1, 2)
    assert (unpacked.rows_of(np.array(other)) < 0).tolist() == [True, False, True]
    (row,) = unpacked.rows_of(np.array(other[1:2]))
    assert unpacked.arena.memory[row].tolist() == list(range(8))
    assert bench.memory[[1, 0]].tolist() == [[3] * 4, [2] * 4]


def test_a_block_that_does_not_pack_is_brought_from_the_tier_that_has_it(near: ScriptedTier, far: ScriptedTier) -> None:
    unpacked = UnpackedRows(HostArena(1, 8), 3)
    bench = Bench(Level(near), Level(far), unpacked=unpacked)
    far.records[tier_key(NAMES[0])] = bytes(range(8))
    assert bench.hits_at_last(Fetch(1, NAMES[:1], SLOTS[:1])) == (0,)
    assert unpacked.arena.memory[0].tolist() == list(range(8))


def test_without_a_row_a_block_that_does_not_pack_is_not_found_and_keeps_none(near: ScriptedTier) -> None:
    unpacked = UnpackedRows(HostArena(1, 8), 3)
    bench = Bench(Level(near), unpacked=unpacked)
    for name in NAMES[:2]:
        near.records[tier_key(name)] = bytes(8)
    assert bench.hits_at_last(Fetch(1, NAMES, SLOTS)) == (0,)
    assert (unpacked.rows_of(np.array(SLOTS)).tolist(), unpacked.used) == ([0, -1, -1], 1)
    assert bench.hits_at_last(Fetch(2, NAMES[2:], SLOTS[:1])) == (), "nothing has come, so the row is free again"
    assert unpacked.used == 0


def test_a_stack_that_closes_asks_for_nothing_more_whatever_it_hears(near: ScriptedTier, far: ScriptedTier) -> None:
    unpacked = UnpackedRows(HostArena(1, 8), 3)
    bench = Bench(Level(near), Level(far), unpacked=unpacked)
    near.silent = True
    bench.stack.start(Fetch(1, NAMES, SLOTS))
    near.speak()  # it has none of them packed
    bench.arena.close()
    bench.stack.close()
    (answer,), _ = bench.stack.poll()
    assert (answer.hits, unpacked.used, bench.stack.busy) == ((), 0, False)


def test_memory_that_is_given_up_while_tiers_are_being_opened_keeps_none_of_them_open(
    near: ScriptedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = HostArena(3, 4)
    unpacked = UnpackedRows(HostArena(1, 8), 3)

    def open_slowly(*_: object, **__: object) -> list[ScriptedTier]:
        unpacked.arena.close()
        arena.close()
        return [near]

    monkeypatch.setattr("kvtide.tiers.stack.open_tiers", open_slowly)
    stack = open_stack(parse_tiers([{"type": "null"}]), NAMESPACE, 0, arena.memory, places=SlotPlaces(arena, unpacked))
    assert stack.close()
    assert near.closed


def test_a_block_of_which_nobody_knows_where_it_is_does_not_sink(near: ScriptedTier) -> None:
    unpacked = UnpackedRows(HostArena(2, 8), 3)
    bench = Bench(Level(near), unpacked=unpacked)
    unpacked._table._row_of[SLOTS[1]] = 77
    assert bench.hits(Sink(1, NAMES, SLOTS)) == ()
    assert near.records == {}


def test_a_slot_that_is_fetched_to_gives_its_row_back(near: ScriptedTier) -> None:
    unpacked = UnpackedRows(HostArena(1, 8), 3)
    assert unpacked.place(np.array([SLOTS[1]])) == []
    bench = Bench(Level(near), unpacked=unpacked)
    record(near, 1)
    assert bench.hits_at_last(Fetch(3, NAMES[1:2], SLOTS[1:2])) == (0,)
    assert unpacked.used == 0


def test_without_tiers_every_errand_is_answered_at_once() -> None:
    bench = Bench()
    assert bench.hits(Lookup(1, NAMES)) == ()
    assert bench.hits(Fetch(2, NAMES, SLOTS)) == ()
    assert bench.hits(Sink(3, NAMES, SLOTS)) == ()
    assert bench.hits(Clear(4)) == (0,)


def test_a_lookup_asks_every_tier(near: ScriptedTier, far: ScriptedTier) -> None:
    bench = Bench(Level(near), Level(far))
    record(near, 0)
    record(far, 2)
    assert bench.hits(Lookup(1, NAMES)) == (0, 2)


def test_f27_ranks_with_the_same_bytes_write_and_read_each_record_once() -> None:
    tiers = [ScriptedTier(), ScriptedTier()]
    benches = [Bench(Level(tier), share=Share(index, 2)) for index, tier in enumerate(tiers)]
    benches[1].memory = benches[0].memory
    benches[0].fill(3, 4, 5)
    for bench in benches:
        assert bench.hits(Sink(1, NAMES, SLOTS)) == (0, 1, 2)
    assert [len(tier.records) for tier in tiers] == [1, 2], "each is kept once"
    benches[0].fill(0, 0, 0)
    for bench in benches:
        assert bench.hits(Lookup(2, NAMES)) == (0, 1, 2)
        assert bench.hits(Fetch(3, NAMES, SLOTS)) == (0, 1, 2)
    assert benches[0].memory[:, 0].tolist() == [3, 4, 5]


def test_f27_a_record_that_its_rank_does_not_find_is_not_said_to_be_there_by_that_rank() -> None:
    tiers = [ScriptedTier(), ScriptedTier()]
    benches = [Bench(Level(tier), share=Share(index, 2)) for index, tier in enumerate(tiers)]
    found = [set(bench.hits(Lookup(1, NAMES)) or ()) for bench in benches]
    assert set.intersection(*found) == set()
    tiers[0].silent = True
    assert benches[0].hits(Lookup(2, NAMES[:1])) == (0,), "nothing to ask for, and nobody to wait for"


def test_a_lookup_need_not_wait_when_everything_is_found(near: ScriptedTier, far: ScriptedTier) -> None:
    bench = Bench(Level(near), Level(far))
    far.silent = True
    record(near, 0, 1, 2)
    assert bench.hits(Lookup(1, NAMES)) == (0, 1, 2)
    far.speak()
    assert bench.stack.poll() == ((), ()), "nobody is interested any more"


def test_f18_a_silent_tier_is_waited_for_until_its_deadline(near: ScriptedTier, far: ScriptedTier) -> None:
    bench = Bench(Level(near), Level(far, deadline_s=0.05))
    far.silent = True
    record(near, 1)
    assert bench.hits(Lookup(1, NAMES)) is None
    bench.now_s += 0.049
    assert bench.stack.poll() == ((), ())
    bench.now_s += 0.002
    answers, _ = bench.stack.poll()
    assert [answer.hits for answer in answers] == [(1,)]
    far.speak()
    assert bench.stack.poll() == ((), ())


def test_a_fetch_goes_down_until_everything_has_come(near: ScriptedTier, far: ScriptedTier) -> None:
    bench = Bench(Level(near), Level(far))
    record(near, 0)
    record(far, 0, 2)
    bench.stack.start(Fetch(1, NAMES, SLOTS))
    answers = bench.stack.poll()[0] + bench.stack.poll()[0]
    assert [answer.hits for answer in answers] == [(0, 2)]
    assert bench.memory[:, 0].tolist() == [0, 3, 1]


def test_a_tier_that_refuses_has_nothing(near: ScriptedTier, far: ScriptedTier) -> None:
    bench = Bench(Level(near), Level(far))
    near.refuses = True
    record(far, 0)
    assert bench.hits(Lookup(1, NAMES)) == (0,)
    assert bench.hits(Fetch(2, NAMES, SLOTS)) == (0,)
    assert bench.hits(Sink(3, NAMES, SLOTS)) == (0, 1, 2)


def test_f18_a_fetch_that_stalls_is_late_once_and_answered_in_the_end(near: ScriptedTier) -> None:
    bench = Bench(Level(near, deadline_s=0.05))
    near.silent = True
    record(near, 0)
    assert bench.hits(Fetch(1, NAMES, SLOTS)) is None
    bench.now_s += 0.06
    assert bench.stack.poll() == ((), (1,))
    assert bench.stack.poll() == ((), ())
    near.speak()
    answers, _ = bench.stack.poll()
    assert [(answer.id, answer.hits) for answer in answers] == [(1, (0,))]


def test_f18_what_the_lookup_has_used_up_is_not_waited_for_again(near: ScriptedTier) -> None:
    bench = Bench(Level(near, deadline_s=0.05))
    near.silent = True
    bench.stack.start(Fetch(1, NAMES, SLOTS, waited_s=0.04))
    bench.now_s += 0.011
    assert bench.stack.poll() == ((), (1,))


def test_a_slow_tier_that_makes_progress_is_not_late(near: ScriptedTier) -> None:
    bench = Bench(Level(near, deadline_s=0.05))
    near.silent = True
    bench.stack.start(Fetch(1, NAMES[:1], SLOTS[:1]))
    bench.stack.start(Fetch(2, NAMES[1:2], SLOTS[1:2]))
    bench.now_s += 0.04
    first = min(near.calls)
    call = near.calls.pop(first)
    near.answers.append(CallResult(first, (MISS,) * len(call[1])))
    assert [answer.id for answer in bench.stack.poll()[0]] == [1]
    bench.now_s += 0.04
    assert bench.stack.poll() == ((), ()), "it has answered 40 ms ago"
    bench.now_s += 0.02
    assert bench.stack.poll() == ((), (2,))


@pytest.mark.parametrize(
    ("write", "admit", "leaving", "used", "kept"),
    [
        ("through", "all", False, False, True),
        ("through", "all", True, False, False),
        ("through", "second-use", False, False, False),
        ("through", "second-use", False, True, True),
        ("through", "all", False, True, False),
        ("evict", "all", False, False, False),
        ("evict", "all", True, False, True),
        ("evict", "all", True, True, True),
        ("evict", "second-use", True, False, False),
        ("evict", "second-use", True, True, True),
    ],
)
def test_a_tier_gets_what_it_wants(
    near: ScriptedTier, *, write: str, admit: str, leaving: bool, used: bool, kept: bool
) -> None:
    bench = Bench(Level(near, 0.05, write, admit))  # type: ignore[arg-type]
    bench.fill(1, 2, 3)
    hits = bench.hits(Sink(1, NAMES, SLOTS, leaving=leaving, used=used))
    assert hits == ((0, 1, 2) if kept else ())
    assert (
        near.records == {tier_key(NAMES[0]): b"\3" * 4, tier_key(NAMES[1]): b"\1" * 4, tier_key(NAMES[2]): b"\2" * 4}
    ) == kept


def test_f9_after_a_clear_that_failed_nothing_of_before_is_read_and_the_tier_goes_on(near: ScriptedTier) -> None:
    bench = Bench(Level(near))
    bench.fill(1, 2, 3)
    assert bench.hits(Sink(1, NAMES, SLOTS)) == (0, 1, 2)
    near.fails = True
    assert bench.hits(Clear(2)) == (0,)
    near.fails = False
    assert len(near.records) == 3
    assert bench.hits(Lookup(3, NAMES)) == ()
    assert bench.hits(Fetch(4, NAMES, SLOTS)) == ()
    assert bench.hits(Sink(5, NAMES[:1], SLOTS[:1])) == (0,)
    assert bench.hits(Lookup(6, NAMES)) == (0,)


def test_f9_a_fetch_that_was_under_way_brings_nothing_of_before_from_the_next_tier(
    near: ScriptedTier, far: ScriptedTier
) -> None:
    bench = Bench(Level(near), Level(far))
    record(far, 0, 1, 2)
    near.silent = far.fails = True
    bench.stack.start(Fetch(1, NAMES, SLOTS))
    bench.stack.start(Clear(2))
    far.fails = False
    near.speak()
    answers = bench.stack.poll()[0] + bench.stack.poll()[0]
    assert {answer.id: answer.hits for answer in answers} == {1: (), 2: (0,)}


def test_f9_a_clear_is_answered_before_the_tiers_have_done_it(near: ScriptedTier, far: ScriptedTier) -> None:
    bench = Bench(Level(near), Level(far))
    near.silent = True
    far.refuses = True
    assert bench.hits(Clear(1)) == (0,)
    assert not bench.stack.knows(1)
    assert [call for call, _ in near.calls.values()] == ["clear"]
    near.speak()
    assert bench.stack.poll() == ((), ())


def test_f9_a_clear_is_tried_again_until_it_works(
    near: ScriptedTier, far: ScriptedTier, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(Level(near, place="/near"), Level(far, place="valkey://far"))
    record(near, 0)
    record(far, 1)
    far.fails = True
    bench.hits(Clear(1))
    assert not near.records
    for number in range(2, 5):
        bench.now_s += 1.0
        bench.hits(Lookup(number, NAMES))
    assert far.records
    far.fails = False
    bench.now_s += 4.0
    bench.hits(Lookup(5, NAMES))
    assert not far.records
    assert [entry.message for entry in caplog.records] == [
        "kvtide: clearing valkey://far: told to; it is tried again; by hand: kvtide tier clear valkey://far",
        "kvtide: clearing valkey://far: works again",
    ]
    record(far, 1)
    bench.now_s += 10.0
    bench.hits(Lookup(6, NAMES))
    assert far.records, "it is not cleared once more"


def test_f9_a_clear_that_fails_is_tried_after_ever_longer_pauses_up_to_half_a_minute(near: ScriptedTier) -> None:
    """Each try removes what was stored since the last one: a tier that cannot be cleared would never hold anything."""
    bench = Bench(Level(near))
    near.fails = near.silent = True
    bench.hits(Clear(1))
    tried_s: list[float] = []
    for number in range(2, 200):
        if any(call == "clear" for call, _ in near.calls.values()):
            tried_s.append(bench.now_s - 100.0)
            near.speak()
            bench.stack.poll()
        bench.now_s += 1.0
        bench.hits(Lookup(number, ()))
    assert tried_s[:8] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0, 91.0]
    bench.hits(Clear(200))
    assert "clear" in [call for call, _ in near.calls.values()], "the next reset does not wait for the last"


def test_f9_a_clear_that_is_made_up_for_does_not_undo_the_put_that_it_comes_with(near: ScriptedTier) -> None:
    bench = Bench(Level(near))
    near.fails = True
    bench.hits(Clear(1))
    near.fails = False
    bench.now_s += 1.0
    assert bench.hits(Sink(2, NAMES, SLOTS)) == (0, 1, 2)
    assert bench.hits(Lookup(3, NAMES)) == (0, 1, 2)


def test_f9_only_the_answer_to_the_last_clear_counts(near: ScriptedTier) -> None:
    bench = Bench(Level(near))
    near.silent = True
    bench.hits(Clear(1))
    near.speak()
    near.fails = True
    bench.hits(Clear(2))
    near.speak()
    bench.stack.poll()
    bench.now_s += 1.0
    bench.hits(Lookup(3, NAMES))
    assert [call for call, _ in near.calls.values()].count("clear") == 1, "the first has worked, the second has not"


def test_f9_what_is_stored_after_a_clear_is_for_this_engine_alone(near: ScriptedTier) -> None:
    cleared, other = Bench(Level(near)), Bench(Level(near))
    assert cleared.hits(Clear(1)) == (0,)
    assert cleared.hits(Sink(2, NAMES[:1], SLOTS[:1])) == (0,)
    assert other.hits(Sink(3, NAMES[1:2], SLOTS[1:2])) == (0,)
    assert cleared.hits(Lookup(4, NAMES)) == (0,), "not what others computed, with the weights of the namespace"
    assert other.hits(Lookup(5, NAMES)) == (1,), "nor they what it computed, with whatever weights it has now"
    assert cleared.hits(Clear(6)) == (0,)
    assert cleared.hits(Sink(7, NAMES[1:2], SLOTS[1:2])) == (0,)
    assert cleared.hits(Lookup(8, NAMES)) == (1,)


def test_f9_a_tier_that_refuses_to_clear_is_asked_again_once_a_second(near: ScriptedTier) -> None:
    bench = Bench(Level(near))
    near.refuses = True
    record(near, 0)
    assert bench.hits(Clear(1)) == (0,)
    near.refuses = False
    for number in range(2, 12):
        bench.hits(Lookup(number, NAMES))
    assert near.records, "not within a second"
    near.silent = True
    for number in range(12, 22):
        bench.now_s += 1.0
        bench.hits(Lookup(number, NAMES))
    assert [call for call, _ in near.calls.values()].count("clear") == 1, "not while it is at it"
    near.speak()
    bench.stack.poll()
    assert not near.records


@pytest.mark.parametrize("answers", [True, False])
def test_f9_closing_waits_for_a_clear_that_was_asked_for_just_before_and_not_for_ever(
    near: ScriptedTier, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    bench = Bench(Level(near))
    record(near, 0)
    near.silent = True
    bench.stack.start(Clear(1))

    def wait(timeout_s: float) -> bool:
        bench.now_s += timeout_s
        if answers:
            near.speak()
        return answers

    monkeypatch.setattr(near, "wait", wait)
    assert bench.stack.close(1.0) is answers
    assert bool(near.records) is not answers
    assert bench.now_s == pytest.approx(100.0 if answers else 100.5, abs=0.01), "the rest is for the tiers themselves"


def test_salts_come_from_where_the_caller_says(near: ScriptedTier) -> None:
    salts = iter([b"first", b"second"])
    bench = Bench(Level(near), new_salt=lambda: next(salts))
    for number, salt in enumerate((b"first", b"second")):
        bench.hits(Clear(2 * number))
        bench.hits(Sink(2 * number + 1, NAMES[:1], SLOTS[:1]))
        assert list(near.records) == [tier_key(NAMES[0], salt)]


def test_waiting_is_for_the_tier_that_is_asked_and_not_for_one_that_has_nothing_to_do(
    near: ScriptedTier, far: ScriptedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a thread that waits for a shared store behind a disk would spin, and take the processor from that store."""
    bench = Bench(Level(near), Level(far))
    far.silent = True
    record(far, 0)
    bench.stack.start(Lookup(1, NAMES))
    waited = []

    def wait(timeout_s: float) -> bool:
        waited.append(timeout_s)
        far.speak()
        return True

    monkeypatch.setattr(far, "wait", wait)
    monkeypatch.setattr(near, "wait", lambda _: pytest.fail("it has nothing under way"))
    assert bench.stack.wait([1], 1.0)
    assert len(waited) == 1


def test_a_plan_that_comes_twice_is_done_once(near: ScriptedTier) -> None:
    bench = Bench(Level(near))
    near.silent = True
    bench.stack.start(Lookup(1, NAMES))
    bench.stack.start(Lookup(1, NAMES))
    assert len(near.calls) == 1


def test_a_clear_that_comes_twice_is_answered_once_and_nothing_stored_since_is_lost(near: ScriptedTier) -> None:
    bench = Bench(Level(near))
    bench.stack.start(Clear(1))
    bench.stack.start(Sink(2, NAMES, SLOTS))
    bench.stack.start(Clear(1))
    bench.stack.start(Fetch(3, NAMES, SLOTS))
    answers, _ = bench.stack.poll()
    assert [(answer.id, len(answer.hits)) for answer in answers] == [(1, 1), (2, 3), (3, 3)]


def test_waiting_ends_with_the_answer_or_at_its_deadline(near: ScriptedTier) -> None:
    bench = Bench(Level(near))
    assert bench.stack.wait([1], 1.0), "nothing is under way"
    bench.stack.start(Lookup(1, NAMES))
    assert bench.stack.wait([1], 1.0)
    assert [answer.id for answer in bench.stack.poll()[0]] == [1], "waiting does not swallow answers"
    near.silent = True
    bench.stack.start(Fetch(2, NAMES, SLOTS))
    ticks = iter(range(1000))
    bench.stack._clock = lambda: 200.0 + next(ticks) / 100
    assert bench.stack.wait([2], 1.0), "it is late by then"


def test_closing_answers_what_the_tiers_give_up(near: ScriptedTier) -> None:
    bench = Bench(Level(near))
    near.silent = True
    bench.stack.start(Fetch(1, NAMES, SLOTS))
    assert not bench.stack.close(), "a get still runs"
    near.fails = True
    near.speak()
    assert bench.stack.close()
    assert bench.stack.poll() == ((Answer(1, (), 0.0),), ())
    assert not bench.stack.knows(1)


def test_a_large_fetch_is_cut_into_calls_and_is_over_when_all_of_them_are() -> None:
    tier, memory = ScriptedTier(), np.zeros((3, 4), np.uint8)
    tier.records = {tier_key(name): bytes([number] * 4) for number, name in enumerate(NAMES, 1)}
    tier.silent = True
    stack = TierStack([Level(tier)], lambda slot: memoryview(memory[slot]), call_bytes_max=8)
    stack.start(Fetch(1, NAMES, SLOTS))
    assert [len(items) for _, items in tier.calls.values()] == [2, 1]
    second = tier.calls.popitem()
    tier.speak()
    assert stack.poll()[0] == ()
    tier.calls.update([second])
    tier.speak()
    assert [answer.hits for answer in stack.poll()[0]] == [(0, 1, 2)]
    assert [list(memory[slot]) for slot in SLOTS] == [[1] * 4, [2] * 4, [3] * 4]


def test_a_stack_is_busy_as_long_as_somebody_waits_for_an_answer(near: ScriptedTier) -> None:
    bench = Bench(Level(near))

    def is_busy() -> bool:
        return bench.stack.busy

    assert not is_busy()
    near.silent = True
    bench.stack.start(Lookup(1, NAMES))
    assert is_busy()
    near.speak()
    assert is_busy(), "it is not polled yet"
    bench.stack.poll()
    assert not is_busy()
    bench.stack.start(Clear(2))
    bench.stack.poll()
    assert is_busy(), "a tier is being emptied"
    near.speak()
    bench.stack.poll()
    assert not is_busy()


def test_every_tier_of_a_stack_tells_when_it_has_answered() -> None:
    tiers = [QueuedTier(MemoryBackend(), threads=1) for _ in range(2)]
    bench = Bench(*map(Level, tiers))
    told = threading.Semaphore(0)
    bench.stack.tell(told.release)
    bench.stack.start(Lookup(1, NAMES))
    for _ in tiers:
        assert told.acquire(timeout=20.0)
    bench.stack.close()
