"""What many worlds came to: counts, violations, and what never happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtide.core.reasons import NotLoaded, NotStored, NotSunk
from kvtide.sim.below import TIER_FAULT_KINDS
from kvtide.sim.faults import FAULT_KINDS, PRESSURE_KINDS
from kvtide.sim.node.chances import NODE_FAULT_KINDS
from kvtide.sim.simulation import Found, Result

FAULTS: tuple[str, ...] = (*FAULT_KINDS, *PRESSURE_KINDS, *TIER_FAULT_KINDS, "clear_fails", *NODE_FAULT_KINDS)
"""Every kind of fault that is counted."""

_ELSEWHERE = (NotStored.NOT_CERTAIN,)
"""Needs another connector beside kvtide, which no world has: tests/vllm/test_beside.py."""

REASONS: tuple[str, ...] = tuple(
    [f"not_stored.{why.value}" for why in NotStored if why not in _ELSEWHERE]
    + [f"not_loaded.{why.value}" for why in NotLoaded]
    + [f"not_sunk.{why.value}" for why in NotSunk]
)
"""Every other reason of F4."""

FOUND_KEPT_MAX = 20


@dataclass(slots=True)
class Tally:
    """Sums over worlds. Can be added up, and sent between processes."""

    seeds: int = 0
    steps: int = 0
    busy_s: float = 0.0
    """Seconds of processor time, summed over processes."""
    interrupted: bool = False
    """Ctrl-C ended it early."""
    violations: int = 0
    found: list[Found] = field(default_factory=list)
    """The first few violations."""
    faults: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    worlds: Counter[str] = field(default_factory=Counter)
    """How many worlds of each kind there were."""

    def add(self, result: Result, *, again: bool = False) -> None:
        """Count one world. `again`: of a seed that was counted."""
        self.seeds += not again
        self.steps += result.steps
        self.faults.update(result.faults)
        self.reasons.update(result.reasons)
        self.worlds.update(result.kinds)
        if result.found is not None:
            self.violations += 1
            self._keep([result.found])

    def merge(self, other: Tally) -> None:
        """Count the worlds of another tally."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.busy_s += other.busy_s
        self.violations += other.violations
        self.faults.update(other.faults)
        self.reasons.update(other.reasons)
        self.worlds.update(other.worlds)
        self._keep(other.found)

    def never_happened(self) -> list[str]:
        """Return the kinds of faults and the reasons that did not occur."""
        return [kind for kind in FAULTS if not self.faults[kind]] + [why for why in REASONS if not self.reasons[why]]

    def _keep(self, found: Iterable[Found]) -> None:
        self.found += found
        del self.found[FOUND_KEPT_MAX:]
