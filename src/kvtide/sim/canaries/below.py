"""Canaries below host memory."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtide.core.ledger import ErrandEntry
from kvtide.core.manager import OffloadManager
from kvtide.core.messages import Answer
from kvtide.sim.canaries.base import Patches, around, canary, returning
from kvtide.sim.tier import SimTier
from kvtide.tiers.stack import TierStack


@canary("F8", "what a tier brings is not verified", "I3")
def unverified_tier() -> Patches:
    return [returning(SimTier, "verifies", True)]


@canary("F9", "a reset leaves the tiers as they were", "I3", "I8")
def tiers_keep_all() -> Patches:
    def forgetful(reset: Callable[..., None], self: OffloadManager, *, below: bool = True) -> None:
        reset(self, below=False)

    return [around(OffloadManager, "reset", forgetful)]


@canary("F9", "what tiers could not remove has the same names after a reset", "I3")
def no_salt() -> Patches:
    def unsalted(init: Callable[..., None], self: TierStack, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs | {"new_salt": bytes})

    return [around(TierStack, "__init__", unsalted)]


@canary("F10", "a block counts as fetched when one rank has its part", "I3", "I6", "I8")
def one_rank_has_it() -> Patches:
    def hear(self: ErrandEntry, answer: Answer) -> None:
        self.missed = set(range(len(self.names))).difference(answer.hits)

    return [(ErrandEntry, "hear", hear)]
