"""Canaries below host memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kvtide.core.ledger import ErrandEntry
from kvtide.core.manager import OffloadManager
from kvtide.core.messages import Answer
from kvtide.sim.canaries.base import Canary, Patches, caught_by
from kvtide.sim.tier import SimTier
from kvtide.tiers.stack import CALL_BYTES_MAX, Level, TierStack, random_salt


def _unverified_tier() -> Patches:
    def verifies(self: SimTier, content: int) -> bool:
        return True

    return [(SimTier, "verifies", verifies)]


def _tiers_keep_all() -> Patches:
    reset = OffloadManager.reset

    def forgetful(self: OffloadManager, *, below: bool = True) -> None:
        reset(self, below=False)

    return [(OffloadManager, "reset", forgetful)]


def _no_salt() -> Patches:
    init = TierStack.__init__

    def unsalted(
        self: TierStack,
        levels: Sequence[Level],
        memory: Callable[[int], memoryview],
        *,
        clock: Callable[[], float] = time.monotonic,
        new_salt: Callable[[], bytes] = random_salt,
        call_bytes_max: int = CALL_BYTES_MAX,
    ) -> None:
        init(self, levels, memory, clock=clock, new_salt=bytes, call_bytes_max=call_bytes_max)

    return [(TierStack, "__init__", unsalted)]


def _one_rank_has_it() -> Patches:
    def hear(self: ErrandEntry, answer: Answer) -> None:
        self.missed = set(range(len(self.names))).difference(answer.hits)

    return [(ErrandEntry, "hear", hear)]


BELOW = (
    Canary("F8", "unverified-tier", "what a tier brings is not verified", _unverified_tier, caught_by("I3")),
    Canary("F9", "tiers-keep-all", "a reset leaves the tiers as they were", _tiers_keep_all, caught_by("I3", "I8")),
    Canary("F9", "no-salt", "what tiers could not remove has the same names after a reset", _no_salt, caught_by("I3")),
    Canary(
        "F10",
        "one-rank-has-it",
        "a block counts as fetched when one rank has its part",
        _one_rank_has_it,
        caught_by("I3", "I6", "I8"),
    ),
)
