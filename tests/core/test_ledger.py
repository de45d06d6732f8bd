"""The ledger: a transfer is over when every rank has said so, once."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtide.core import Copy, Metrics, Report, messages
from kvtide.core.ledger import (
    ClearEntry,
    Entry,
    FetchEntry,
    Ledger,
    LoadEntry,
    LookupEntry,
    SinkEntry,
    StoreEntry,
)
from kvtide.core.messages import Answer
from kvtide.core.requests import Request, Search


def started(ranks: int, count: int = 1) -> tuple[Ledger, list[Entry], Metrics]:
    metrics = Metrics()
    ledger = Ledger(ranks, metrics)
    transfers: list[Entry] = [StoreEntry(ledger.next_id()) for _ in range(count)]
    for transfer in transfers:
        ledger.start(transfer)
    return ledger, transfers, metrics


def test_ids_are_never_used_twice() -> None:
    ledger = Ledger(1, Metrics())
    assert len({ledger.next_id() for _ in range(100)}) == 100


def test_a_transfer_is_over_when_every_rank_has_reported() -> None:
    ledger, (transfer,), _ = started(ranks=3)
    assert ledger.settle(Report(2, done=(transfer.id,))) == []
    assert ledger.settle(Report(0, done=(transfer.id,))) == []
    assert len(ledger) == 1
    assert ledger.settle(Report(1, done=(transfer.id,))) == [transfer]
    assert len(ledger) == 0
    assert transfer.failure is None


def test_a_failed_transfer_waits_for_the_other_ranks_too() -> None:
    ledger, (transfer,), _ = started(ranks=2)
    assert ledger.settle(Report(0, failed=((transfer.id, "no memory"),))) == []
    assert ledger.settle(Report(1, done=(transfer.id,))) == [transfer]
    assert transfer.failure == "rank 0: no memory"


def test_the_first_failure_is_the_one_that_is_told() -> None:
    ledger, (transfer,), _ = started(ranks=2)
    ledger.settle(Report(1, failed=((transfer.id, "first"),)))
    ledger.settle(Report(0, failed=((transfer.id, "second"),)))
    assert transfer.failure == "rank 1: first"


def test_a_failure_without_a_reason_is_a_failure() -> None:
    ledger, (transfer,), _ = started(ranks=1)
    ledger.settle(Report(0, failed=((transfer.id, ""),)))
    assert transfer.failure is not None


def test_a_report_about_an_unknown_transfer_is_counted_and_ignored() -> None:
    ledger, (transfer,), metrics = started(ranks=1)
    assert ledger.settle(Report(0, done=(transfer.id + 1, -1), failed=((99, "what?"),))) == []
    assert metrics.reports_unknown == 3
    assert len(ledger) == 1


@pytest.mark.parametrize("rank", [-1, 2, 64])
def test_a_report_of_a_rank_that_does_not_exist_is_counted_and_ignored(rank: int) -> None:
    ledger, (transfer,), metrics = started(ranks=2)
    assert ledger.settle(Report(rank, done=(transfer.id,))) == []
    assert metrics.reports_unknown == 1
    assert transfer.ranks_left == 0b11


def test_a_second_report_of_a_rank_is_counted_and_ignored() -> None:
    ledger, (transfer,), metrics = started(ranks=2)
    ledger.settle(Report(0, done=(transfer.id,)))
    assert ledger.settle(Report(0, failed=((transfer.id, "too late"),))) == []
    assert metrics.reports_repeated == 1
    assert transfer.failure is None
    assert ledger.settle(Report(1, done=(transfer.id,))) == [transfer]


def test_a_report_after_the_end_is_unknown() -> None:
    ledger, (transfer,), metrics = started(ranks=1)
    ledger.settle(Report(0, done=(transfer.id,)))
    assert ledger.settle(Report(0, done=(transfer.id,))) == []
    assert metrics.reports_unknown == 1


def test_what_any_rank_did_not_keep_is_not_kept_and_second_reports_of_a_rank_change_nothing() -> None:
    ledger, (transfer, other), _ = started(ranks=2, count=2)
    assert isinstance(transfer, StoreEntry)
    assert isinstance(other, StoreEntry)
    ledger.settle(Report(1, done=(transfer.id,), not_kept=((transfer.id, (5, 7)),)))
    ledger.settle(Report(1, done=(transfer.id,), not_kept=((transfer.id, (6,)),)))
    ledger.settle(Report(-1, done=(transfer.id,), not_kept=((transfer.id, (8,)), (99, (9,)))))
    assert ledger.settle(Report(0, done=(transfer.id,), not_kept=((transfer.id, (4,)),))) == [transfer]
    assert (transfer.not_kept, transfer.failure, other.not_kept) == ({4, 5, 7}, None, set())


def test_transfers_are_listed_oldest_first() -> None:
    ledger, transfers, _ = started(ranks=1, count=3)
    ledger.settle(Report(0, done=(transfers[0].id,)))
    assert list(ledger) == transfers[1:]


def test_a_transfer_is_told_as_pairs() -> None:
    load = LoadEntry(7, blocks=[3, 1], slots=[0, 5], request=Request("r", [], []))
    assert load.as_copy() == Copy(7, (3, 1), (0, 5), request_id="r")


def test_a_store_says_whether_its_blocks_are_filled() -> None:
    assert StoreEntry(7, blocks=[3], slots=[0]).as_copy() == Copy(7, (3,), (0,), filled=True)
    assert StoreEntry(7, blocks=[3], slots=[0], filled=False).as_copy() == Copy(7, (3,), (0,), filled=False)


SEARCH = Search(Request("r", [], []), 0, 12)
NAMES = [(0, b"a"), (0, b"b"), (1, b"a")]


@pytest.mark.parametrize(
    ("errand", "told"),
    [
        (LookupEntry(7, names=NAMES, search=SEARCH), messages.Lookup(7, tuple(NAMES))),
        (FetchEntry(7, names=NAMES, slots=[4, 5, 6], waited_s=0.5), messages.Fetch(7, tuple(NAMES), (4, 5, 6), 0.5)),
        (SinkEntry(7, names=NAMES, slots=[4, 5, 6]), messages.Sink(7, tuple(NAMES), (4, 5, 6))),
        (
            SinkEntry(7, names=NAMES, slots=[4, 5, 6], leaving=True),
            messages.Sink(7, tuple(NAMES), (4, 5, 6), leaving=True),
        ),
        (SinkEntry(7, names=NAMES, slots=[4, 5, 6], used=True), messages.Sink(7, tuple(NAMES), (4, 5, 6), used=True)),
        (ClearEntry(7), messages.Clear(7)),
    ],
)
def test_an_errand_is_told_with_what_a_worker_needs(
    errand: LookupEntry | FetchEntry | SinkEntry | ClearEntry, told: messages.Errand
) -> None:
    assert errand.as_errand() == told


def looking(ranks: int) -> tuple[Ledger, LookupEntry, Metrics]:
    ledger, _, metrics = started(ranks)
    lookup = LookupEntry(ledger.next_id(), names=NAMES, search=SEARCH)
    ledger.start(lookup)
    return ledger, lookup, metrics


def test_what_every_rank_has_is_a_hit() -> None:
    """F10."""
    ledger, lookup, _ = looking(ranks=3)
    answers = [((0, 1, 2), 0.1), ((2, 1), 0.3), ((1, 0, 2), 0.2)]
    for rank, (hits, seconds) in enumerate(answers):
        assert lookup in ledger
        settled = ledger.settle(Report(rank, answers=(Answer(lookup.id, hits, seconds),)))
    assert settled == [lookup]
    assert lookup.hits == [1, 2]
    assert lookup.seconds == 0.3, "the slowest rank's"


def test_an_errand_is_answered_and_a_copy_is_reported_and_nothing_else_is_understood() -> None:
    ledger, lookup, metrics = looking(ranks=1)
    (copy, _) = ledger
    assert not ledger.settle(Report(0, done=(lookup.id,)))
    assert not ledger.settle(Report(0, failed=((lookup.id, "what?"),)))
    assert not ledger.settle(Report(0, answers=(Answer(copy.id),)))
    assert (metrics.reports_unknown, len(ledger)) == (3, 2)
    assert not ledger.settle(Report(1, answers=(Answer(lookup.id),)))
    assert metrics.reports_unknown == 4
    assert ledger.settle(Report(0, answers=(Answer(lookup.id),))) == [lookup]
    assert lookup.hits == []


def test_a_second_answer_changes_nothing() -> None:
    ledger, lookup, metrics = looking(ranks=2)
    ledger.settle(Report(0, answers=(Answer(lookup.id, (0, 1, 2)),)))
    ledger.settle(Report(0, answers=(Answer(lookup.id, (), 9.0),)))
    assert metrics.reports_repeated == 1
    ledger.settle(Report(1, answers=(Answer(lookup.id, (0, 1, 2)),)))
    assert (lookup.hits, lookup.seconds) == ([0, 1, 2], 0.0)


def test_a_transfer_can_be_had_while_it_is_under_way() -> None:
    ledger, (transfer,), _ = started(ranks=1)
    assert ledger.get(transfer.id) is transfer
    ledger.settle(Report(0, done=(transfer.id,)))
    assert ledger.get(transfer.id) is None


@given(data=st.data(), ranks=st.integers(1, 4))
def test_in_whatever_order_ranks_report_each_transfer_ends_exactly_once(data: st.DataObject, ranks: int) -> None:
    ledger, transfers, metrics = started(ranks, count=4)
    words = [(rank, transfer.id) for rank in range(ranks) for transfer in transfers] * 2  # everything is said twice
    failing = data.draw(st.sets(st.sampled_from(words)))
    settled: list[Entry] = []
    first_word: dict[tuple[int, int], bool] = {}
    for rank, transfer_id in data.draw(st.permutations(words)):
        fails = (rank, transfer_id) in failing
        first_word.setdefault((rank, transfer_id), fails)
        report = Report(rank, failed=((transfer_id, "x"),)) if fails else Report(rank, done=(transfer_id,))
        settled += ledger.settle(report)
    assert sorted(transfer.id for transfer in settled) == [transfer.id for transfer in transfers]
    assert len(ledger) == 0
    assert metrics.reports_unknown + metrics.reports_repeated == len(words) // 2
    for transfer in transfers:
        assert (transfer.failure is not None) == any(first_word[rank, transfer.id] for rank in range(ranks))
