"""Canaries that end in wrong bytes: copies and compute that meet, and copies that count although they failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvtide.copy.base import Fence
from kvtide.core.below.below import Below
from kvtide.core.config import OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import Entry, Ledger, LoadEntry, StoreEntry
from kvtide.core.loading.loads import Loads
from kvtide.core.manager import OffloadManager
from kvtide.core.messages import Answer, Copy
from kvtide.core.metrics import Metrics
from kvtide.core.requests import State
from kvtide.core.storing.stores import Stores
from kvtide.sim.canaries.base import Canary, Patches, caught_by
from kvtide.sim.copies import Job, SimCopyEngine
from kvtide.sim.engine import SimEngine
from kvtide.sim.rank import Rank
from kvtide.sim.work import StepWork


class _Unpinned:
    """A device pool that does not keep anything for a store."""

    def __init__(self, device: Any) -> None:
        self.find = device.find

    def pin(self, blocks: Sequence[int]) -> None:
        """Do nothing."""

    def unpin(self, blocks: Sequence[int]) -> None:
        """Do nothing."""


def _unpinned_stores() -> Patches:
    init = Stores.__init__

    def unpinned(
        self: Stores,
        config: OffloadConfig,
        device: DevicePool,
        host: HostPool,
        *,
        below: Below,
        ledger: Ledger,
        metrics: Metrics,
    ) -> None:
        loose: Any = _Unpinned(device)
        init(self, config, loose, host, below=below, ledger=ledger, metrics=metrics)

    return [(Stores, "__init__", unpinned)]


def _no_store_fence() -> Patches:
    fence_of = SimCopyEngine.fence_of

    def only_for_loads(self: SimCopyEngine, job: Job, after: Fence | None) -> int:
        return 0 if job.is_store else fence_of(self, job, after)

    return [(SimCopyEngine, "fence_of", only_for_loads)]


def _filled_ignored() -> Patches:
    def must_wait(self: SimEngine, store: Copy) -> bool:
        return False

    return [(SimEngine, "must_wait", must_wait)]


def _found_counts_as_filled() -> Patches:
    as_copy = StoreEntry.as_copy

    def claims_filled(self: StoreEntry) -> Copy:
        return replace(as_copy(self), filled=True)

    return [(StoreEntry, "as_copy", claims_filled)]


def _early_load() -> Patches:
    def may_compute(self: Rank, work: StepWork) -> bool:
        return True

    return [(Rank, "may_compute", may_compute)]


def _no_load_fence() -> Patches:
    fence_of = SimCopyEngine.fence_of

    def only_for_stores(self: SimCopyEngine, job: Job, after: Fence | None) -> int:
        return fence_of(self, job, after) if job.is_store else 0

    return [(SimCopyEngine, "fence_of", only_for_stores)]


def _failed_load_served() -> Patches:
    settle = Loads.settle

    def believing(self: Loads, load: LoadEntry) -> None:
        load.failure = None
        settle(self, load)

    return [(Loads, "settle", believing)]


def _failed_store_visible() -> Patches:
    settle = Stores.settle

    def believing(self: Stores, store: StoreEntry) -> None:
        store.failure = None
        settle(self, store)

    return [(Stores, "settle", believing)]


def _stale_after_reset() -> Patches:
    def clear(self: HostPool) -> None:
        """Forget nothing."""

    return [(HostPool, "clear", clear)]


def _planned_loads_survive() -> Patches:
    def reset(self: Loads) -> None:
        """Let loads that are in no plan yet go on."""

    return [(Loads, "reset", reset)]


def _loading_is_not_stale() -> Patches:
    reset = OffloadManager.reset

    def forgetful(self: OffloadManager, *, below: bool = True) -> None:
        reset(self, below=below)
        for request in self._requests.values():
            request.stale = request.state is State.RUNNING

    return [(OffloadManager, "reset", forgetful)]


def _one_rank_is_enough() -> Patches:
    hear = Ledger._hear

    def hasty(
        self: Ledger, rank: int, transfer_id: int, failure: str | None, answer: Answer | None = None
    ) -> Entry | None:
        transfer = self._in_flight.get(transfer_id)
        if transfer is not None and 0 <= rank < self._ranks:
            transfer.ranks_left = 1 << rank
        return hear(self, rank, transfer_id, failure, answer)

    return [(Ledger, "_hear", hasty)]


WRONG_BYTES = (
    Canary(
        "F5",
        "unpinned-stores",
        "device blocks are not pinned while a store reads them",
        _unpinned_stores,
        caught_by("I1"),
    ),
    Canary("F6", "no-store-fence", "stores do not wait for compute", _no_store_fence, caught_by("I1", "I3")),
    Canary(
        "F6",
        "filled-ignored",
        "stores of blocks that were found by key do not wait for the step that may fill them",
        _filled_ignored,
        caught_by("I1", "I3"),
    ),
    Canary(
        "F6",
        "found-is-filled",
        "blocks that were found by key count as filled",
        _found_counts_as_filled,
        caught_by("I1", "I3"),
    ),
    Canary(
        "F7", "early-load", "compute does not wait for loads that were announced", _early_load, caught_by("I1", "I4")
    ),
    Canary("F7", "no-load-fence", "loads do not wait for compute", _no_load_fence, caught_by("I1")),
    Canary("F8", "failed-load-served", "a load that failed counts as done", _failed_load_served, caught_by("I4")),
    Canary("F8", "failed-store-visible", "a store that failed counts as done", _failed_store_visible, caught_by("I3")),
    Canary(
        "F9",
        "stale-after-reset",
        "a reset leaves the host as it was",
        _stale_after_reset,
        caught_by("I2", "I5", "I6"),
    ),
    Canary(
        "F9",
        "planned-loads-survive",
        "a reset lets loads go on that are about to begin",
        _planned_loads_survive,
        caught_by("I4"),
    ),
    Canary(
        "F9",
        "loading-is-not-stale",
        "what a request builds on KV from before a reset is stored, if it was loading then",
        _loading_is_not_stale,
        caught_by("I3", "I6"),
    ),
    Canary(
        "F10",
        "one-rank-is-enough",
        "a transfer counts as done when one rank says so",
        _one_rank_is_enough,
        caught_by("I1", "I2", "I3", "I4", "I5", "I6", "I8"),
    ),
)
