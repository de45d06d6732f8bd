"""Canaries that kill or hang the engine."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from kvtide.core.index.local import LocalIndex
from kvtide.core.ledger import Entry, Ledger, LoadEntry
from kvtide.core.loading.loads import Loads
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Lease, Match
from kvtide.core.requests import Request
from kvtide.core.storing.stores import Stores
from kvtide.sim.canaries.base import Patches, around, canary, returning
from kvtide.sim.copies import CopyCrash, Job, SimCopyEngine


@canary("F11", "what was offered is not kept until it is accepted", "I2", "I5", "I6")
def unkept_promise() -> Patches:
    lease = LocalIndex.lease
    loose: set[int] = set()

    def lease_without_pin(self: LocalIndex, match: Match) -> Lease:
        unkept = Lease(match.slots)
        loose.add(id(unkept))
        return unkept

    def release_loosely(release: Callable[..., None], self: LocalIndex, kept: Lease) -> None:
        if id(kept) in loose:
            loose.discard(id(kept))
        else:
            release(self, kept)

    def lease_late(start: Callable[..., None], self: Loads, request: Request, match: Match, *accepted: Any) -> None:
        if id(request.lease) in loose:
            loose.discard(id(request.lease))
            request.lease = lease(cast("LocalIndex", self._index), match)
        start(self, request, match, *accepted)

    return [
        (LocalIndex, "lease", lease_without_pin),
        around(LocalIndex, "release", release_loosely),
        around(Loads, "_start", lease_late),
    ]


@canary("F12", "stores pin as many device blocks as they like", "I9")
def unbounded_pins() -> Patches:
    return [(Stores, "room", property(lambda _: 1 << 30))]


@canary("F15", "an exception ends the copy loop of a rank", "I8")
def copy_loop_dies() -> Patches:
    dead: set[int] = set()

    def dies(self: SimCopyEngine, job: Job, crash: CopyCrash) -> None:
        dead.add(id(self))

    def if_alive(method: Callable[..., None], self: SimCopyEngine, job: Job) -> None:
        if id(self) not in dead:
            method(self, job)

    return [
        (SimCopyEngine, "_crashed", dies),
        around(SimCopyEngine, "_begin", if_alive),
        around(SimCopyEngine, "_end", if_alive),
    ]


@canary("F16", "a report about an unknown transfer is an assertion", raises="AssertionError")
def assert_known() -> Patches:
    def trusting(hear: Callable[..., Entry], self: Ledger, rank: int, transfer_id: int, *rest: Any) -> Entry:
        assert self.get(transfer_id) is not None, f"unknown transfer {transfer_id}"
        return hear(self, rank, transfer_id, *rest)

    return [around(Ledger, "_hear", trusting)]


@canary("F16", "a request that ends returns the pins of its load at once", "I1", "I5")
def finish_returns_pins() -> Patches:
    def hasty(finish: Callable[..., None], self: OffloadManager, request_id: str) -> None:
        load_id = self._requests[request_id].load_id
        for transfer in self._ledger:
            if transfer.id == load_id and isinstance(transfer, LoadEntry):
                self._loads._device.unpin(transfer.blocks)
        finish(self, request_id)

    return [around(OffloadManager, "finish", hasty)]


@canary("F15", "the pins of a load are returned as soon as it is overdue", "I1", "I2", "I5")
def overdue_returns_pins() -> Patches:
    def hasty(passed: Callable[..., None], self: OffloadManager, seconds: float) -> None:
        passed(self, seconds)
        for load in self._ledger.overdue:
            if isinstance(load, LoadEntry):
                self._loads._device.unpin(load.blocks)
                load.blocks, load.slots = [], []
                if load.lease is not None:
                    self._index.release(load.lease)
                    load.lease = None

    return [around(OffloadManager, "passed", hasty)]


@canary("F15", "a rank that says nothing is waited for without end", "I8")
def never_overdue() -> Patches:
    return [returning(Ledger, "passed", [])]


@canary("F15", "a rank has lost its device, and what is computed is stored all the same", "I8")
def stores_after_stop() -> Patches:
    def only_reset(self: OffloadManager) -> None:
        self.reset(below=False)

    return [(OffloadManager, "stop", only_reset)]
