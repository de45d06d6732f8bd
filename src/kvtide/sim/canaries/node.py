"""Canaries of a node and of engines that share it."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvtide.core.chain import Chain
from kvtide.core.index import calls
from kvtide.core.index.look_ups import LookedUp, LookUps
from kvtide.core.index.remote import RemoteIndex
from kvtide.core.index.reservations import RemoteRun, Reservations
from kvtide.core.index.shared import SharedIndex
from kvtide.core.match import Lease, Match
from kvtide.core.messages import Pool, Report
from kvtide.core.ready_slots import ReadySlots
from kvtide.core.reasons import NotLoaded
from kvtide.core.storing.stores import Stores
from kvtide.sim.canaries.base import Patches, around, canary, returning
from kvtide.sim.node.node import SimNode


@canary("F4", "what a node is silent about is not counted as not loaded", "I6", node="yes")
def silent_node() -> Patches:
    def as_told(self: LookUps, asked: LookedUp, found: calls.Found) -> Mapping[NotLoaded, int]:
        return found.missed

    return [(LookUps, "_missed", as_told)]


@canary("F28", "slots of a writer are given to others when its connection closes", "I10", "I14", node="yes")
def reuse_before_exit() -> Patches:
    def hasty(closed: Callable[..., None], self: SharedIndex, owner: int) -> None:
        closed(self, owner)
        for run in self._owners[owner].runs.values():
            self._settle(run, kept=False)
        self._owners[owner].runs.clear()

    return [around(SharedIndex, "closed", hasty)]


@canary("F28", "leases of an owner are returned when its connection closes", "I11", node="breaks")
def lease_ends_with_connection() -> Patches:
    def hasty(closed: Callable[..., None], self: SharedIndex, owner: int) -> None:
        closed(self, owner)
        for lease, _ in self._owners[owner].leases.values():
            self._index.release(lease)
        self._owners[owner].leases.clear()

    return [around(SharedIndex, "closed", hasty)]


@canary("F28", "an engine does not return its leases", "I11", node="yes")
def lease_not_released() -> Patches:
    def silent(self: LookUps, lease: Lease) -> None:
        if lease.id:
            self._lives.let_go(lease.life)

    return [(LookUps, "release", silent)]


@canary("F28", "leases of a dead engine are kept for ever", "I5", node="yes")
def lease_of_the_dead() -> Patches:
    def forgetful(ended: Callable[..., None], self: SharedIndex, owner: int) -> None:
        self._owners[owner].leases.clear()
        ended(self, owner)

    return [around(SharedIndex, "ended", forgetful)]


@canary("F28", "what was granted in an earlier life is committed in this one", "I12", node="dies")
def commit_of_an_old_epoch() -> Patches:
    def of_any_life(settle: Callable[..., bool], self: Reservations, chains: Sequence[Chain], *, kept: bool) -> bool:
        runs = [chain for chain in chains if isinstance(chain, RemoteRun)]
        old = [run.id for run in runs if run.life != self._lives.now]
        if old and kept and self._lives.now is not None:
            self._lives.send(calls.Settle(old, kept=True))
        return settle(self, chains, kept=kept)

    return [around(Reservations, "settle", of_any_life)]


@canary("F28", "what a rank has said of memory of an earlier life counts for this one", "I5", node="breaks")
def report_of_an_old_epoch() -> Patches:
    def of_any_life(
        heard: Callable[..., int | None], self: ReadySlots, report: Report, pool: Pool | None
    ) -> int | None:
        return heard(self, replace(report, life=0 if pool is None else pool.life), pool)

    return [around(ReadySlots, "heard", of_any_life)]


@canary("F29", "an engine waits for a node that is not there", "I13", node="yes")
def waits_for_a_dead_node() -> Patches:
    def patient(miss: Callable[..., Match], self: LookUps, *args: Any) -> Match:
        match = miss(self, *args)
        return replace(match, waits=True) if NotLoaded.NODE_AWAY in match.missed else match

    return [around(LookUps, "miss", patient)]


@canary("F29", "an engine waits for an answer without end", "I13", node="yes")
def waits_for_an_answer() -> Patches:
    return [returning(RemoteIndex, "passed")]


@canary("F29", "device blocks are kept for a node that does not answer", "I5", node="yes")
def held_for_ever() -> Patches:
    return [returning(Stores, "let_go")]


@canary("F29", "an engine never leaves a node that hangs", "I13", node="yes")
def never_leaves() -> Patches:
    def patient(passed: Callable[..., None], self: RemoteIndex, seconds: float) -> None:
        for ask in self._reservations._asks.values():
            ask.waited_s = 0.0
        passed(self, seconds)

    return [around(RemoteIndex, "passed", patient)]


@canary("F2", "nobody is told of what a dead writer has not written", "I14", node="yes")
def never_taken_over() -> Patches:
    return [returning(SharedIndex, "_rely")]


@canary("F2", "an engine does not care for what a dead writer has not written", "I14", node="yes")
def notice_ignored() -> Patches:
    def deaf(self: RemoteIndex) -> list[Chain]:
        self._take()
        self._unkept.clear()
        return []

    return [(RemoteIndex, "receive", deaf)]


@canary("F23", "a look-up finds blocks of another namespace", "I15", node="yes")
def namespaces_cross() -> Patches:
    return [returning(SimNode, "namespace_of", (0, 0))]


@canary("F28", "a store that failed is committed to the node", "I12", node="yes")
def failed_store_committed() -> Patches:
    def trusting(settle: Callable[..., bool], self: RemoteIndex, chains: Sequence[Chain], *, kept: bool) -> bool:
        return settle(self, chains, kept=True)

    return [around(RemoteIndex, "settle", trusting)]


@canary("F9", "what is being written when an operator clears is committed all the same", "I12", node="yes")
def commit_of_what_was_cleared() -> Patches:
    def forgetful(clear: Callable[..., int], self: SharedIndex) -> int:
        blocks = clear(self)
        for owner in self._owners.values():
            owner.void.clear()
        return blocks

    return [around(SharedIndex, "clear", forgetful)]


@canary("F28", "leases end when an operator clears", "I11", node="yes")
def lease_ends_with_a_clear() -> Patches:
    def hasty(clear: Callable[..., int], self: SharedIndex) -> int:
        blocks = clear(self)
        for owner in self._owners.values():
            for lease, _ in owner.leases.values():
                self._index.release(lease)
            owner.leases.clear()
        return blocks

    return [around(SharedIndex, "clear", hasty)]
