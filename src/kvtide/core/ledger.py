"""The ledger of transfers: which are in flight, and which ranks have not reported yet (F10, F16)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtide.core.chain import Chain
from kvtide.core.metrics import Metrics
from kvtide.core.wire import Copy, Report


@dataclass(slots=True, eq=False)
class Transfer:
    """Pairs of device block and host slot going one way, and what is left to be heard of them."""

    id: int
    blocks: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    ranks_left: int = 0
    """Bit r is set while rank r has not reported."""
    failure: str | None = None
    """Why it failed, on the first rank that said so."""
    abandoned: bool = False
    """After a reset: the bytes are of no use to anyone, whatever the ranks say."""


@dataclass(slots=True, eq=False)
class Store(Transfer):
    """Device to host."""

    chains: list[Chain] = field(default_factory=list)
    attempt: int = 1
    filled: bool = True
    """See `Copy`."""

    def as_copy(self) -> Copy:
        """Return what workers are told."""
        return Copy(self.id, tuple(self.blocks), tuple(self.slots), filled=self.filled)


@dataclass(slots=True, eq=False)
class Load(Transfer):
    """Host to device, for one request."""

    request_id: str = ""
    boundary: int = 0
    """Tokens that count as computed once it is done."""
    tokens: int = 0
    """Tokens among them that come from the host."""

    def as_copy(self) -> Copy:
        """Return what workers are told."""
        return Copy(self.id, tuple(self.blocks), tuple(self.slots), self.request_id)


class Ledger:
    """Transfers from the plan that starts them to the last rank's report."""

    def __init__(self, ranks: int, metrics: Metrics) -> None:
        self._ranks = ranks
        self._metrics = metrics
        self._in_flight: dict[int, Transfer] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._in_flight)

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._in_flight.values())

    def next_id(self) -> int:
        """Return an id that was never used."""
        self._last_id += 1
        return self._last_id

    def start(self, transfer: Transfer) -> None:
        """Wait for every rank's word about `transfer` from now on."""
        transfer.ranks_left = (1 << self._ranks) - 1
        self._in_flight[transfer.id] = transfer

    def settle(self, report: Report) -> list[Transfer]:
        """Take a report; return the transfers of which every rank has reported now.

        A failed transfer too waits for all ranks: until then the others may be reading or writing its blocks.
        """
        heard = [self._hear(report.rank, transfer_id, None) for transfer_id in report.done]
        heard += [self._hear(report.rank, transfer_id, why) for transfer_id, why in report.failed]
        return [transfer for transfer in heard if transfer is not None]

    def _hear(self, rank: int, transfer_id: int, failure: str | None) -> Transfer | None:
        """Tick off one rank; return the transfer when it was the last one."""
        transfer = self._in_flight.get(transfer_id)
        if transfer is None or not 0 <= rank < self._ranks:
            self._metrics.reports_unknown += 1
            return None
        if not transfer.ranks_left >> rank & 1:
            self._metrics.reports_repeated += 1
            return None
        transfer.ranks_left &= ~(1 << rank)
        if failure is not None and transfer.failure is None:
            transfer.failure = f"rank {rank}: {failure}"
        if transfer.ranks_left:
            return None
        return self._in_flight.pop(transfer_id)
