"""The ledger of transfers: which are in flight, and which ranks have not reported yet (F10, F16).

A transfer is whatever a plan starts and every rank reports: a copy between device and host, or an errand below host
memory. The ledger has one entry for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from kvtide.core import messages
from kvtide.core.chain import Chain
from kvtide.core.match import Lease
from kvtide.core.messages import Answer, Copy, Errand, Name, Report
from kvtide.core.metrics import Metrics
from kvtide.core.requests import Request, Search


@dataclass(slots=True, eq=False)
class Entry:
    """A transfer, and what is left to be heard of it."""

    id: int
    slots: list[int] = field(default_factory=list)
    """Host slots that it reads or writes."""
    ranks_left: int = 0
    """Bit r is set while rank r has not reported."""
    failure: str | None = None
    """Why it failed, on the first rank that said so."""
    abandoned: bool = False
    """After a reset: the bytes are of no use to anyone, whatever the ranks say."""
    since_s: float = 0.0
    """When it began, on the ledger's clock."""


@dataclass(slots=True, eq=False)
class CopyEntry(Entry):
    """Pairs of device block and host slot going one way."""

    blocks: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class StoreEntry(CopyEntry):
    """Device to host."""

    chains: list[Chain] = field(default_factory=list)
    attempt: int = 1
    filled: bool = True
    life: int = 0
    """See `Copy`."""
    not_kept: set[int] = field(default_factory=set)
    """Slots that some rank had no place for, though the copy is done: a key is visible if every rank has it (F10)."""

    def as_copy(self) -> Copy:
        """Return what workers are told."""
        return Copy(self.id, tuple(self.blocks), tuple(self.slots), filled=self.filled, life=self.life)


@dataclass(slots=True, eq=False)
class LoadEntry(CopyEntry):
    """Host to device, for one request."""

    request: Request = field(kw_only=True)
    boundary: int = 0
    """Tokens that count as computed once it is done."""
    tokens: int = 0
    """Tokens among them that come from the host."""
    lease: Lease | None = None
    """What keeps its slots; None if it needs none."""

    def as_copy(self) -> Copy:
        """Return what workers are told."""
        life = self.lease.life if self.lease is not None else 0
        return Copy(self.id, tuple(self.blocks), tuple(self.slots), self.request.id, life=life)


@dataclass(slots=True, eq=False)
class ErrandEntry(Entry, ABC):
    """Something below host memory, which each rank does with its part of the blocks."""

    names: list[Name] = field(default_factory=list)
    missed: set[int] = field(default_factory=set)
    """Positions that at least one rank does not have: a block is there when every rank has its part (F10)."""
    seconds: float = 0.0
    """How long the slowest rank took."""

    @property
    def hits(self) -> list[int]:
        """Positions that every rank has."""
        return [position for position in range(len(self.names)) if position not in self.missed]

    def hear(self, answer: Answer) -> None:
        """Take one rank's answer into account."""
        if len(answer.hits) < len(self.names):
            self.missed.update(set(range(len(self.names))).difference(answer.hits))
        self.seconds = max(self.seconds, answer.seconds)

    @abstractmethod
    def as_errand(self) -> Errand:
        """Return what workers are told."""


@dataclass(slots=True, eq=False)
class LookupEntry(ErrandEntry):
    """Asks what is there, for one request."""

    search: Search = field(kw_only=True)

    def as_errand(self) -> Errand:
        """Return what workers are told."""
        return messages.Lookup(self.id, tuple(self.names))


@dataclass(slots=True, eq=False)
class FetchEntry(ErrandEntry):
    """Brings blocks up to the host."""

    chains: list[Chain] = field(default_factory=list)
    waited_s: float = 0.0
    searches: list[Search] = field(default_factory=list)
    """The requests that wait for it: the one that asked first, and those that need the same blocks."""
    queued_tokens: float = 0.0
    """Tokens that were on their way up when it began, its own among them: they have come when it has."""
    relied_on: set[int] = field(default_factory=set)
    """Slots whose content somebody has computed meanwhile and not stored, because it was on its way up."""
    late: bool = False
    """Whoever waited for it goes on without, and nobody else begins to wait."""

    def as_errand(self) -> Errand:
        """Return what workers are told."""
        return messages.Fetch(self.id, tuple(self.names), tuple(self.slots), self.waited_s)


@dataclass(slots=True, eq=False)
class SinkEntry(ErrandEntry):
    """Lets blocks sink."""

    leaving: bool = False
    used: bool = False

    def as_errand(self) -> Errand:
        """Return what workers are told."""
        return messages.Sink(self.id, tuple(self.names), tuple(self.slots), self.leaving, self.used)


@dataclass(slots=True, eq=False)
class ClearEntry(ErrandEntry):
    """Empties the tiers. That every rank has heard of it is all there is to know."""

    def as_errand(self) -> Errand:
        """Return what workers are told."""
        return messages.Clear(self.id)


OVERDUE_S = 60.0
"""After so long without a word of every rank, nobody waits for a transfer any more."""
STEP_S_MAX = 1.0
"""The most that one step counts for: ranks cannot report while the engine is paused, or compiles for a minute."""


class Ledger:
    """Transfers from the plan that starts them to the last rank's report.

    One that is overdue is failed, and nobody waits for it; but its pins stay until every rank has said that it is not
    under way any more, for until then its blocks and slots may be read or written. The ranks are asked (`Plan.ask`).
    """

    def __init__(self, ranks: int, metrics: Metrics) -> None:
        self._ranks = ranks
        self._metrics = metrics
        self._in_flight: dict[int, Entry] = {}
        """Oldest first."""
        self._overdue: dict[int, Entry] = {}
        self._now_s = 0.0
        self._last_id = 0

    def __len__(self) -> int:
        """Return how many transfers are waited for."""
        return len(self._in_flight)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the transfers that are waited for, oldest first."""
        return iter(self._in_flight.values())

    @property
    def overdue(self) -> Collection[Entry]:
        """Transfers that nobody waits for any more, and that may still be under way."""
        return self._overdue.values()

    def passed(self, seconds: float) -> list[Entry]:
        """Let time pass; return the transfers that are overdue from now on."""
        self._now_s += min(seconds, STEP_S_MAX)
        overdue: list[Entry] = []
        for transfer in self._in_flight.values():
            if self._now_s - transfer.since_s < OVERDUE_S:
                break
            overdue.append(transfer)
        for transfer in overdue:
            silent = ", ".join(str(rank) for rank in range(self._ranks) if transfer.ranks_left >> rank & 1)
            transfer.failure = transfer.failure or f"rank {silent}: no report for {OVERDUE_S:.0f} s"
            self._overdue[transfer.id] = self._in_flight.pop(transfer.id)
            self._metrics.transfers_overdue += 1
        return overdue

    def next_id(self) -> int:
        """Return an id that was never used."""
        self._last_id += 1
        return self._last_id

    def start(self, transfer: Entry) -> None:
        """Wait for every rank's word about `transfer` from now on."""
        transfer.ranks_left = (1 << self._ranks) - 1
        transfer.since_s = self._now_s
        self._in_flight[transfer.id] = transfer

    def abandon(self) -> None:
        """Let everything that is under way come to nothing."""
        for transfer in (*self._in_flight.values(), *self._overdue.values()):
            transfer.abandoned = True

    def settle(self, report: Report) -> list[Entry]:
        """Take a report; return the transfers of which every rank has reported now.

        A failed transfer too waits for all ranks: until then the others may be reading or writing its blocks.
        """
        self._hear_not_kept(report)
        heard = [self._hear(report.rank, transfer_id, None) for transfer_id in report.done]
        heard += [self._hear(report.rank, transfer_id, why) for transfer_id, why in report.failed]
        heard += [self._hear(report.rank, answer.id, None, answer) for answer in report.answers]
        return [transfer for transfer in heard if transfer is not None]

    def get(self, transfer_id: int) -> Entry | None:
        """Return a transfer that some rank has not reported."""
        return self._in_flight.get(transfer_id) or self._overdue.get(transfer_id)

    def _hear_not_kept(self, report: Report) -> None:
        """Take note of what a rank could not keep, unless it has reported that store before."""
        for transfer_id, slots in report.not_kept:
            store = self.get(transfer_id)
            if isinstance(store, StoreEntry) and report.rank >= 0 and store.ranks_left >> report.rank & 1:
                store.not_kept.update(slots)

    def _hear(self, rank: int, transfer_id: int, failure: str | None, answer: Answer | None = None) -> Entry | None:
        """Tick off one rank; return the transfer when it was the last one."""
        transfer = self.get(transfer_id)
        if isinstance(transfer, ErrandEntry) and failure is not None and transfer_id in self._overdue:
            answer = Answer(transfer_id)  # it was asked, and knows nothing of it: so it has found nothing
        understood = isinstance(transfer, ErrandEntry) == (answer is not None)
        if transfer is None or not understood or not 0 <= rank < self._ranks:
            self._metrics.reports_unknown += 1
            return None
        if not transfer.ranks_left >> rank & 1:
            self._metrics.reports_repeated += 1
            return None
        transfer.ranks_left &= ~(1 << rank)
        if answer is not None and isinstance(transfer, ErrandEntry):
            transfer.hear(answer)
        if failure is not None and transfer.failure is None:
            transfer.failure = f"rank {rank}: {failure}"
        if transfer.ranks_left:
            return None
        return self._in_flight.pop(transfer_id, None) or self._overdue.pop(transfer_id)
