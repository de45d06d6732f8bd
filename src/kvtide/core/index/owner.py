"""What one life of an engine holds of a shared index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvtide.core.chain import Chain
from kvtide.core.match import Lease, Match

LEASES_MAX = 10_000
"""Of one engine. One that never returns a lease must not take memory without end."""


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

    _leased_most: int = 0
    """So many different slots it has leased at most: known without looking at them again and again."""
    _leased: set[int] | None = None
    """These slots, where that was not enough, until a lease is returned."""

    @property
    def leased_slots(self) -> int:
        """Slots that it may read, once for each lease."""
        return sum(len(lease.slots) for lease, _ in self.leases.values())

    def may_lease(self, slots: Sequence[int], slots_max: int) -> bool:
        """Whether it would not have leased more than so many different slots with these. The first lease may be larger.

        Many requests may share a prefix, so slots are not counted once for each lease.
        """
        if len(self.leases) >= LEASES_MAX:
            return False
        if not self.leases:
            self._leased_most, self._leased = 0, None
        elif self._leased_most + len(slots) > slots_max:
            if self._leased is None:
                self._leased = {slot for lease, _ in self.leases.values() for slot in lease.slots}
            all_slots = len(self._leased) + sum(slot not in self._leased for slot in slots)
            if max(len(self._leased), slots_max) < all_slots:
                return False
            self._leased.update(slots)
            self._leased_most = all_slots
            return True
        self._leased_most += len(slots)
        self._leased = None
        return True

    def give_back(self, lease: int) -> tuple[Lease, Match | None] | None:
        """Return what a lease is of, once; None if there is no such lease."""
        self._leased = None
        return self.leases.pop(lease, None)

    @property
    def writing_slots(self) -> int:
        """Slots that it may write."""
        return sum(len(run.slots) for run in self.runs.values())
