"""What one life of an engine holds of a shared index."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtide.core.chain import Chain
from kvtide.core.match import Lease, Match


@dataclass(slots=True, eq=False)
class Owner:
    """What one life of an engine holds."""

    slots_ready: int
    leases: dict[int, tuple[Lease, Match | None]] = field(default_factory=dict)
    """What it may read. None: that was cleared meanwhile, and is forgotten but for these slots."""
    runs: dict[int, Chain] = field(default_factory=dict)
    """What it may write."""
    void: set[int] = field(default_factory=set)
    """Runs that come to nothing, whatever is said of them: everything was cleared meanwhile."""
    closed: bool = False
    """Nothing is heard of it any more, but its processes may still copy."""

    @property
    def leased_slots(self) -> int:
        """Slots that it may read."""
        return sum(len(lease.slots) for lease, _ in self.leases.values())

    @property
    def writing_slots(self) -> int:
        """Slots that it may write."""
        return sum(len(run.slots) for run in self.runs.values())
