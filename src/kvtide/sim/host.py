"""The host slots of one part: of a rank, or of several that hold the same bytes."""

from __future__ import annotations

from array import array

from kvtide.sim.tokens import NOTHING


class HostSlots:
    """A stamp for each slot, in real memory, because tiers are given views of memory."""

    def __init__(self, slots: int) -> None:
        self.stamps = array("q", [NOTHING]) * slots
        self.views = [memoryview(self.stamps)[slot : slot + 1] for slot in range(slots)]


def host_of_ranks(ranks: int, replicas: int, slots: int) -> list[HostSlots]:
    """Return the slots of each rank: the same ones for so many ranks, one after the other."""
    parts = [HostSlots(slots) for _ in range(ranks // replicas)]
    return [parts[rank // replicas] for rank in range(ranks)]
