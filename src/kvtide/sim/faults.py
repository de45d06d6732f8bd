"""The faults of a world: how likely each is, and how often it has happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

from kvtide.sim.draw import Draw


@dataclass(frozen=True, slots=True)
class Faults:
    """The chance of each fault, out of 256; 0: never in this world."""

    slow_copy: int = 0
    """A copy takes many steps, so that transfers end in another order than they began."""
    rank_skew: int = 0
    """A copy takes its own time on each rank."""
    failed_copy: int = 0
    """A copy fails on one rank, after it has spoiled its destination."""
    copy_crash: int = 0
    """An exception is raised in the copy loop of one rank (F15)."""
    copy_refused: int = 0
    """The copy engine of one rank has no room for a copy."""
    copy_raises: int = 0
    """The copy engine of one rank raises when it is given a copy. It never should."""
    lost_report: int = 0
    """What a rank has to say comes a step or more later."""
    repeated_report: int = 0
    """A rank says the same thing again, at once or much later."""
    stray_report: int = 0
    """A report about a transfer that never was, or from a rank that is not there."""
    slow_compute: int = 0
    """A step's compute takes longer than the host waits for it."""
    silent_rank: int = 0
    """What a rank has to say of a transfer never comes, or the transfer hangs. Only where time is told."""
    not_kept: int = 0
    """A rank has no place for some blocks of a store that is done otherwise."""

    @classmethod
    def draw(cls, draw: Draw) -> Faults:
        """Draw a chance for each kind: never, seldom or often. What was thought of later is drawn later."""
        later = ("silent_rank", "copy_refused", "copy_raises", "not_kept")
        return cls(**{kind: draw.pick((0, 0, 0, 6, 24, 80)) for kind in FAULT_KINDS if kind not in later})

    def without(self, *kinds: str) -> Faults:
        """Return the same without some kinds."""
        return Faults(**{kind: 0 if kind in kinds else getattr(self, kind) for kind in FAULT_KINDS})

    @property
    def kinds(self) -> list[str]:
        """The kinds that can happen."""
        return [kind for kind in FAULT_KINDS if getattr(self, kind)]


FAULT_KINDS: tuple[str, ...] = tuple(field.name for field in fields(Faults))
"""Faults that are drawn per copy, report or step."""

PRESSURE_KINDS: tuple[str, ...] = ("host_full", "device_short", "pins_in_the_way")
"""Faults that come from small pools: nothing could be stored; no block was free; pins of copies were the reason."""

FaultCounts = Counter[str]
