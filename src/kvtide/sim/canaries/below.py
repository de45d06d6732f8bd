"""Canaries below host memory."""

from __future__ import annotations

from kvtide.core.ledger import ErrandEntry
from kvtide.core.manager import OffloadManager
from kvtide.core.messages import Answer, Clear, Errand
from kvtide.sim.canaries.base import Canary, Patches, caught_by
from kvtide.sim.tier import SimTier


def _unverified_tier() -> Patches:
    def verifies(self: SimTier, content: int) -> bool:
        return True

    return [(SimTier, "verifies", verifies)]


def _tiers_keep_all() -> Patches:
    reset = OffloadManager.reset

    def forgetful(self: OffloadManager, *, below: bool = True) -> None:
        reset(self, below=False)

    return [(OffloadManager, "reset", forgetful)]


def _failed_clear_is_done() -> Patches:
    take = SimTier.take

    def believing(self: SimTier, errand: Errand) -> None:
        before = self.records
        take(self, errand)
        if isinstance(errand, Clear) and self.jobs[errand.id].fails:
            self.records = before

    return [(SimTier, "take", believing)]


def _one_rank_has_it() -> Patches:
    def hear(self: ErrandEntry, answer: Answer) -> None:
        self.missed = set(range(len(self.names))).difference(answer.hits)

    return [(ErrandEntry, "hear", hear)]


BELOW = (
    Canary("F8", "unverified-tier", "what a tier brings is not verified", _unverified_tier, caught_by("I3")),
    Canary("F9", "tiers-keep-all", "a reset leaves the tiers as they were", _tiers_keep_all, caught_by("I3", "I8")),
    Canary(
        "F9", "failed-clear", "what could not be removed is found after a reset", _failed_clear_is_done, caught_by("I3")
    ),
    Canary(
        "F10",
        "one-rank-has-it",
        "a block counts as fetched when one rank has its part",
        _one_rank_has_it,
        caught_by("I3", "I6", "I8"),
    ),
)
