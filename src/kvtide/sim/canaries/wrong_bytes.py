"""Canaries that end in wrong bytes: copies and compute that meet, and copies that count although they failed."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvtide.copy.base import Fence
from kvtide.core.config import OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import Entry, Ledger, LoadEntry, StoreEntry
from kvtide.core.loading.loads import Loads
from kvtide.core.manager import OffloadManager
from kvtide.core.messages import Copy, Report
from kvtide.core.requests import State
from kvtide.core.storing.stores import Stores
from kvtide.sim.canaries.base import Patches, around, canary, returning
from kvtide.sim.copies import Job, SimCopyEngine
from kvtide.sim.engine import SimEngine
from kvtide.sim.rank import Rank


class _Unpinned:
    """A device pool that does not keep anything for a store."""

    def __init__(self, device: DevicePool) -> None:
        self.find = device.find

    def pin(self, blocks: Sequence[int]) -> None:
        """Do nothing."""

    def unpin(self, blocks: Sequence[int]) -> None:
        """Do nothing."""


@canary("F5", "device blocks are not pinned while a store reads them", "I1")
def unpinned_stores() -> Patches:
    def unpinned(
        init: Callable[..., None], self: Stores, config: OffloadConfig, device: DevicePool, *args: Any, **parts: Any
    ) -> None:
        init(self, config, _Unpinned(device), *args, **parts)

    return [around(Stores, "__init__", unpinned)]


@canary("F6", "stores do not wait for compute", "I1", "I3")
def no_store_fence() -> Patches:
    def only_for_loads(fence_of: Callable[..., int], self: SimCopyEngine, job: Job, after: Fence | None) -> int:
        return 0 if job.is_store else fence_of(self, job, after)

    return [around(SimCopyEngine, "fence_of", only_for_loads)]


@canary("F6", "stores of blocks that were found by key do not wait for the step that may fill them", "I1", "I3")
def filled_ignored() -> Patches:
    return [returning(SimEngine, "must_wait", False)]


@canary("F6", "blocks that were found by key count as filled", "I1", "I3")
def found_is_filled() -> Patches:
    def claims_filled(as_copy: Callable[..., Copy], self: StoreEntry) -> Copy:
        return replace(as_copy(self), filled=True)

    return [around(StoreEntry, "as_copy", claims_filled)]


@canary("F7", "compute does not wait for loads that were announced", "I1", "I4")
def early_load() -> Patches:
    return [returning(Rank, "may_compute", True)]


@canary("F7", "loads do not wait for compute", "I1")
def no_load_fence() -> Patches:
    def only_for_stores(fence_of: Callable[..., int], self: SimCopyEngine, job: Job, after: Fence | None) -> int:
        return fence_of(self, job, after) if job.is_store else 0

    return [around(SimCopyEngine, "fence_of", only_for_stores)]


def _believing(settle: Callable[..., None], self: object, transfer: LoadEntry | StoreEntry) -> None:
    transfer.failure = None
    settle(self, transfer)


@canary("F8", "a load that failed counts as done", "I4")
def failed_load_served() -> Patches:
    return [around(Loads, "settle", _believing)]


@canary("F8", "a store that failed counts as done", "I3")
def failed_store_visible() -> Patches:
    return [around(Stores, "settle", _believing)]


@canary("F9", "a reset leaves the host as it was", "I2", "I5", "I6")
def stale_after_reset() -> Patches:
    return [returning(HostPool, "clear")]


@canary("F9", "a reset lets loads go on that are about to begin", "I4")
def planned_loads_survive() -> Patches:
    return [returning(Loads, "reset")]


@canary("F9", "what a request builds on KV from before a reset is stored, if it was loading then", "I3", "I6")
def loading_is_not_stale() -> Patches:
    def forgetful(reset: Callable[..., None], self: OffloadManager, *, below: bool = True) -> None:
        reset(self, below=below)
        for request in self._requests.values():
            request.stale = request.state is State.RUNNING

    return [around(OffloadManager, "reset", forgetful)]


@canary("F10", "a block is visible that some rank had no place for", "I3", "I6")
def not_kept_visible() -> Patches:
    return [returning(Ledger, "_hear_not_kept")]


@canary("F10", "a block is visible when the last rank has kept it, whatever others have", "I3", "I6")
def last_rank_keeps_it() -> Patches:
    def only_the_last(hear: Callable[..., None], self: Ledger, report: Report) -> None:
        for transfer_id, _ in report.not_kept:
            store = self.get(transfer_id)
            if isinstance(store, StoreEntry):
                store.not_kept.clear()
        hear(self, report)
        for transfer_id in set(report.done).difference(dict(report.not_kept)):
            store = self.get(transfer_id)
            if isinstance(store, StoreEntry):
                store.not_kept.clear()

    return [around(Ledger, "_hear_not_kept", only_the_last)]


@canary("F10", "a transfer counts as done when one rank says so", "I1", "I2", "I3", "I4", "I5", "I6", "I8")
def one_rank_is_enough() -> Patches:
    def hasty(hear: Callable[..., Entry], self: Ledger, rank: int, transfer_id: int, *rest: Any) -> Entry:
        transfer = self._in_flight.get(transfer_id)
        if transfer is not None and 0 <= rank < self._ranks:
            transfer.ranks_left = 1 << rank
        return hear(self, rank, transfer_id, *rest)

    return [around(Ledger, "_hear", hasty)]
