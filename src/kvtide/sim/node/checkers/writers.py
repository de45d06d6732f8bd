"""I10: a slot is given to a new writer only if no process that may still write it lives."""

from __future__ import annotations

from kvtide.sim.copies import Job
from kvtide.sim.node.books import Granted
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.connection import Connection
from kvtide.sim.violation import Violation


class WritersChecker(NodeChecker):
    """Looks into the copy engines of all processes, the killed ones too."""

    invariant = "I10"

    def granted(self, run: Granted) -> None:
        """Nobody may be at these slots, or have been given them and still live."""
        for slot, place in zip(run.slots, run.places(), strict=True):
            writer = self.books.slot_writers.get(place)
            if writer is not None:
                raise Violation("I10", f"slot {slot} is given to {run.owner}, and {writer} may still write it")
        for other in self.books.connections:
            if other.arena is run.arena:
                self._check_still(other, run)

    def _check_still(self, other: Connection, run: Granted) -> None:
        for rank in other.engine.ranks:
            for job in rank.copies.unfinished.values():
                if job.is_store and job.copy.life == other.life and not set(job.copy.slots).isdisjoint(run.slots):
                    raise Violation(
                        "I10",
                        f"slots {run.slots} are given to {run.owner}, and store {job.copy.id} of {other} "
                        f"on rank {rank.index} is at slots {list(job.copy.slots)}",
                    )

    def copy_begins(self, owner: Connection, job: Job) -> None:
        """Who writes must be the one who was last given the slot."""
        if not job.is_store or owner.arena is None:
            return
        for slot in job.copy.slots:
            writer = self.books.slot_writers.get((owner.arena, slot))
            if writer is not owner:
                raise Violation("I10", f"store {job.copy.id} of {owner} writes slot {slot}, which is {writer}'s")
