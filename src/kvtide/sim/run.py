"""What everything in one run of a world shares."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.sim.checkers.watch import Watch
from kvtide.sim.clock import Clock
from kvtide.sim.draw import Draw
from kvtide.sim.faults import FaultCounts
from kvtide.sim.log import Log
from kvtide.sim.world import RUN_STREAM, TIER_RUN_STREAM, World


@dataclass(frozen=True, slots=True)
class Run:
    """A world, its time, its luck, its checkers and its log."""

    world: World
    clock: Clock
    draw: Draw
    tier_draw: Draw
    """Luck of its own, so that a world is the same with and without tiers until they make a difference."""
    watch: Watch
    fault_counts: FaultCounts
    log: Log | None
    """None unless somebody wants to read it."""

    @classmethod
    def of(cls, world: World, *, log: bool) -> Run:
        """Begin a run."""
        clock = Clock()
        draw = Draw(world.seed, RUN_STREAM)
        tier_draw = Draw(world.seed, TIER_RUN_STREAM)
        return cls(world, clock, draw, tier_draw, Watch(world), FaultCounts(), Log(clock) if log else None)

    def happens(self, kind: str) -> bool:
        """Draw whether a fault happens now, and count it."""
        chance = getattr(self.world.faults, kind)
        if not chance or not self.draw.chance(chance):
            return False
        self.fault_counts[kind] += 1
        return True
