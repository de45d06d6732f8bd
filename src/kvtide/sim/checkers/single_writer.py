"""I7: one key is written by one transfer at a time, only if it is not there, and by one rank of each part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

if TYPE_CHECKING:
    from kvtide.sim.copies import Job
    from kvtide.sim.rank import Rank


class SingleWriterChecker(Checker):
    """Knows by content, not by block, what is on its way."""

    invariant = "I7"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._writers: dict[tuple[int, int, int], int] = {}
        """Which rank has begun to write a slot in a store, by store, part and slot."""

    def copy_begins(self, rank: Rank, job: Job) -> None:
        """Look for another rank that writes the same bytes (F27)."""
        if not job.is_store or self.world.replicas == 1:
            return
        for slot in job.copy.slots:
            writer = self._writers.setdefault((job.copy.id, rank.index // self.world.replicas, slot), rank.index)
            if writer != rank.index:
                what = f"slot {slot} of store {job.copy.id} is written by rank {rank.index}"
                raise Violation("I7", f"{what}, and by rank {writer}, which holds the same bytes")

    def planned(self, flight: Flight) -> None:
        """Look for the same content elsewhere."""
        if not flight.writes_host:
            return
        observed = self.observed
        seen: set[int] = set()
        for content in flight.stamps:
            if content in observed.writing or content in seen:
                other = observed.writing.get(content, flight.id)
                what = observed.tokens.describe(content)
                raise Violation("I7", f"{flight.kind} {flight.id} writes {what}, and so does {other}")
            if content in observed.visible:
                what = observed.tokens.describe(content)
                raise Violation("I7", f"{flight.kind} {flight.id} writes {what}, which is visible already")
            seen.add(content)
