"""Canaries: each takes one guard away, so that the simulator can show that it would notice.

A mutation replaces methods of the core's classes, or of the simulated machine's fences and copy loop, for as long as
it is applied. Production code knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from kvtide.core.chain import Chain
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import Errand, Ledger, Load, Store, Transfer
from kvtide.core.loads import Loads
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Match
from kvtide.core.requests import Request
from kvtide.core.store_eager import EagerPlanner
from kvtide.core.stores import Stores
from kvtide.core.wire import Answer
from kvtide.sim.rank import Job, Rank
from kvtide.sim.tier import SimTier

Patches = list[tuple[type, str, Any]]


@dataclass(frozen=True, slots=True)
class Canary:
    """A fault that is let in on purpose."""

    fault: str
    name: str
    what: str
    """What is taken away."""
    patches: Callable[[], Patches]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the fault in, for a while."""
        with ExitStack() as stack:
            for owner, attribute, replacement in self.patches():
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield


# ---------------------------------------------------------------------- losing work


def _no_flush() -> Patches:
    def finished(self: EagerPlanner, request: Request) -> None:
        self._ready.pop(request.id, None)

    return [(EagerPlanner, "finished", finished)]


def _known_when_stored() -> Patches:
    def known(self: HostPool, group: int) -> dict[bytes, int]:
        return {key: slot for key, slot in self._slot_of[group].items() if self._cached[slot]}

    return [(HostPool, "known", known)]


def _never_look_back() -> Patches:
    missing = EagerPlanner._missing

    def only_new(self: EagerPlanner, request: Request, chain: Chain, first: int) -> list[Chain]:
        size = self._groups[chain.group].block_tokens
        runs = []
        for run in missing(self, request, chain, first):
            behind = request.considered[chain.group] - (run.end_tokens // size - 1)
            if behind < len(run):
                runs.append(run.part(max(0, behind), len(run), size))
        return runs

    return [(EagerPlanner, "_missing", only_new)]


def _silence() -> Patches:
    def lose(self: Stores, why: object, blocks: int) -> None:
        """Say nothing."""

    return [(Stores, "lose", lose)]


# ---------------------------------------------------------------------- wrong bytes


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

    def unpinned(self: Stores, config: Any, device: Any, host: Any, **rest: Any) -> None:
        init(self, config, _Unpinned(device), host, **rest)  # type: ignore[arg-type]

    return [(Stores, "__init__", unpinned)]


def _no_fence(*_: object) -> int:
    return 0


def _failed_load_served() -> Patches:
    settle = Loads.settle

    def believing(self: Loads, load: Load, request: Request | None) -> bool | None:
        load.failure = None
        return settle(self, load, request)

    return [(Loads, "settle", believing)]


def _failed_store_visible() -> Patches:
    settle = Stores.settle

    def believing(self: Stores, store: Store) -> None:
        store.failure = None
        settle(self, store)

    return [(Stores, "settle", believing)]


def _stale_after_reset() -> Patches:
    def clear(self: HostPool) -> None:
        """Forget nothing."""

    return [(HostPool, "clear", clear)]


def _one_rank_is_enough() -> Patches:
    hear = Ledger._hear

    def hasty(self: Ledger, rank: int, transfer_id: int, failure: str | None) -> Transfer | None:
        transfer = self._in_flight.get(transfer_id)
        if transfer is not None and 0 <= rank < self._ranks:
            transfer.ranks_left = 1 << rank
        return hear(self, rank, transfer_id, failure)

    return [(Ledger, "_hear", hasty)]


# ---------------------------------------------------------------------- killing or hanging the engine


def _unkept_promise() -> Patches:
    admit, release = Loads.admit, Loads.release
    loose: dict[str, None] = {}

    def reserve_without_pin(self: Loads, request: Request, match: Match) -> None:
        release_loosely(self, request)
        request.reservation = match
        loose[request.id] = None
        self._searches.reserved(request, match)

    def release_loosely(self: Loads, request: Request) -> None:
        if request.id in loose:
            del loose[request.id]
            request.reservation = None
        else:
            release(self, request)

    def pin_late(self: Loads, request: Request, accepted_tokens: int) -> bool:
        if request.id in loose and request.reservation is not None:
            del loose[request.id]
            self._host.pin(request.reservation.slots)
        return admit(self, request, accepted_tokens)

    return [(Loads, "reserve", reserve_without_pin), (Loads, "release", release_loosely), (Loads, "admit", pin_late)]


def _unbounded_pins() -> Patches:
    return [(Stores, "room", property(lambda _: 1 << 30))]


def _copy_loop_dies() -> Patches:
    begin, end = Rank._begin, Rank._end

    dead: set[int] = set()

    def dies(self: Rank, *_: object) -> None:
        dead.add(id(self))

    def begin_if_alive(self: Rank, job: Job) -> None:
        if id(self) not in dead:
            begin(self, job)

    def end_if_alive(self: Rank, job: Job) -> None:
        if id(self) not in dead:
            end(self, job)

    return [(Rank, "_crashed", dies), (Rank, "_begin", begin_if_alive), (Rank, "_end", end_if_alive)]


def _assert_known() -> Patches:
    hear = Ledger._hear

    def trusting(self: Ledger, rank: int, transfer_id: int, failure: str | None) -> Transfer | None:
        assert transfer_id in self._in_flight, f"unknown transfer {transfer_id}"
        return hear(self, rank, transfer_id, failure)

    return [(Ledger, "_hear", trusting)]


def _finish_returns_pins() -> Patches:
    finish = OffloadManager.finish

    def hasty(self: OffloadManager, request_id: str) -> None:
        load_id = self._requests[request_id].load_id
        for transfer in self._ledger:
            if transfer.id == load_id:
                self._loads._device.unpin(transfer.blocks)
        finish(self, request_id)

    return [(OffloadManager, "finish", hasty)]


# ---------------------------------------------------------------------- below host memory


def _unverified_tier() -> Patches:
    return [(SimTier, "verifies", lambda *_: True)]


def _tiers_keep_all() -> Patches:
    reset = OffloadManager.reset

    def forgetful(self: OffloadManager) -> None:
        reset(self)
        self._clear = "done"
        self._sinks.open = True

    return [(OffloadManager, "reset", forgetful)]


def _one_rank_has_it() -> Patches:
    def hear(self: Errand, answer: Answer) -> None:
        self.missed = set(range(len(self.names))).difference(answer.hits)

    return [(Errand, "hear", hear)]


CANARIES: tuple[Canary, ...] = (
    Canary("F1", "no-flush", "what a finished request leaves is not stored", _no_flush),
    Canary("F2", "known-when-stored", "a key is known only when its store is complete", _known_when_stored),
    Canary("F3", "never-look-back", "blocks that were stored once are not looked at again", _never_look_back),
    Canary("F4", "silence", "losses are not counted", _silence),
    Canary("F5", "unpinned-stores", "device blocks are not pinned while a store reads them", _unpinned_stores),
    Canary("F6", "no-store-fence", "stores do not wait for compute", lambda: [(Rank, "store_fence", _no_fence)]),
    Canary("F7", "no-load-fence", "loads do not wait for compute", lambda: [(Rank, "load_fence", _no_fence)]),
    Canary("F8", "failed-load-served", "a load that failed counts as done", _failed_load_served),
    Canary("F8", "failed-store-visible", "a store that failed counts as done", _failed_store_visible),
    Canary("F9", "stale-after-reset", "a reset leaves the host as it was", _stale_after_reset),
    Canary("F10", "one-rank-is-enough", "a transfer counts as done when one rank says so", _one_rank_is_enough),
    Canary("F11", "unkept-promise", "what was offered is not kept until it is accepted", _unkept_promise),
    Canary("F12", "unbounded-pins", "stores pin as many device blocks as they like", _unbounded_pins),
    Canary("F15", "copy-loop-dies", "an exception ends the copy loop of a rank", _copy_loop_dies),
    Canary("F16", "assert-known", "a report about an unknown transfer is an assertion", _assert_known),
    Canary("F8", "unverified-tier", "what a tier brings is not verified", _unverified_tier),
    Canary("F9", "tiers-keep-all", "a reset leaves the tiers as they were", _tiers_keep_all),
    Canary("F10", "one-rank-has-it", "a block counts as fetched when one rank has its part", _one_rank_has_it),
    Canary(
        "F16", "finish-returns-pins", "a request that ends returns the pins of its load at once", _finish_returns_pins
    ),
)
"""Every fault that the simulator must notice. Some can be let in by more than one door."""
