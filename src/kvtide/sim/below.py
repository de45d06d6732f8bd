"""What lies below host memory in one world."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvtide.core.config import Admission, BelowConfig
from kvtide.sim.clock import TICKS_PER_STEP
from kvtide.sim.draw import Draw
from kvtide.tiers.config import Write

DEADLINE_TICKS = 3 * TICKS_PER_STEP
"""A lookup is answered by then, and a fetch of which nothing has come is late."""


@dataclass(frozen=True, slots=True)
class TierWorld:
    """The tiers of one world, the same on every rank. Chances are out of 256."""

    levels: tuple[tuple[Write, Admission], ...]
    """What each of them is there for, nearest first."""
    records_max: int
    min_fetch_tokens: int
    tier_slow: int
    """A call takes much longer than its deadline."""
    tier_fails: int
    """A call comes to nothing."""
    tier_lies: int
    """A lookup names blocks that are not there."""
    tier_forgets: int
    """A record is gone, on this rank only."""
    tier_damage: int
    """A record's bytes change. Tiers verify what they read."""
    tier_full: int
    """A call is refused: too much is under way."""
    tier_throttles: int
    """A call is taken, and not tried."""
    tier_dies: int
    """A tier is out of order from then on, for a while or for good: all calls come to nothing."""
    warm: int
    """How likely a block is there from the start: another server has put it, or this one before it was restarted."""
    impatient: int
    """The engine does not wait for what is below."""

    @classmethod
    def draw(cls, draw: Draw) -> TierWorld | None:
        """Draw one, or none: most worlds end at host memory."""
        if not draw.chance(96):
            return None
        both: tuple[tuple[Admission, ...], ...] = ((), ("all",), ("all",), ("second-use",), ("all", "second-use"))
        seldom_or_often = {kind: draw.pick((0, 0, 6, 24, 80)) for kind in _OLD_KINDS}
        through: list[tuple[Write, Admission]] = [("through", admit) for admit in draw.pick(both)]
        on_evict: list[tuple[Write, Admission]] = [("evict", admit) for admit in draw.pick(both)]
        return cls(
            records_max=draw.pick((4, 40, 400)),
            min_fetch_tokens=draw.pick((1, 1, 4, 12)),
            warm=draw.pick((0, 128, 250)),
            impatient=draw.pick((0, 0, 16)),
            levels=tuple((on_evict + through if draw.chance(64) else through + on_evict) or [("through", "all")]),
            tier_full=draw.pick((0, 0, 0, 6, 24)),
            tier_throttles=draw.pick((0, 0, 0, 6, 24)),
            tier_dies=draw.pick((0, 0, 0, 1, 4)),
            **seldom_or_often,
        )

    @property
    def through(self) -> frozenset[Admission]:
        """What tiers admit that are written when a block is stored, or used."""
        return frozenset(admit for write, admit in self.levels if write == "through")

    @property
    def on_evict(self) -> frozenset[Admission]:
        """What tiers admit that are written when a block leaves the host."""
        return frozenset(admit for write, admit in self.levels if write == "evict")

    def config(self) -> BelowConfig:
        """Return what the core is told."""
        return BelowConfig(through=self.through, on_evict=self.on_evict)


TIER_FAULT_KINDS: tuple[str, ...] = tuple(field.name for field in fields(TierWorld) if field.name.startswith("tier_"))
_OLD_KINDS = ("tier_slow", "tier_fails", "tier_lies", "tier_forgets", "tier_damage")
