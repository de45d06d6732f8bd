"""Canaries of tiers below a node."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from kvtide.core.index.waiting import WaitingLookUps
from kvtide.core.ledger import ErrandEntry
from kvtide.core.messages import Answer
from kvtide.sim.canaries.base import Patches, canary, returning


@canary("F28", "what is brought up for an engine that has gone is kept for it", "I5", node="yes")
def waits_for_the_dead() -> Patches:
    return [returning(WaitingLookUps, "drop_all_of")]


@canary("F10", "at a node, a block counts as brought up when one part has come", "I12", "I15", node="yes")
def one_part_has_come() -> Patches:
    def hear(self: ErrandEntry, answer: Answer) -> None:
        self.missed = set(range(len(self.names))).difference(answer.hits)

    return [(ErrandEntry, "hear", hear)]
