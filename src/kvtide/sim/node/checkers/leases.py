"""I11: what a lease covers does not change until it is released."""

from __future__ import annotations

from kvtide.sim.copies import Job
from kvtide.sim.node.books import Granted
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.connection import Connection
from kvtide.sim.violation import Violation


class LeasesChecker(NodeChecker):
    """Knows the leases from answers, and what releases them from calls."""

    invariant = "I11"

    def granted(self, run: Granted) -> None:
        """What is leased must not be given to a writer."""
        for life, (_, slot) in self.books.lessees(run.places()):
            raise Violation("I11", f"slot {slot} is given to {run.owner}, and life {life} has leased it")

    def copy_begins(self, owner: Connection, job: Job) -> None:
        """Nobody writes what is leased, and loads read nothing else."""
        assert owner.arena is not None
        places = {(owner.arena, slot) for slot in job.copy.slots}
        if job.is_store:
            for life, (_, slot) in self.books.lessees(places):
                raise Violation("I11", f"store {job.copy.id} of {owner} writes slot {slot}, leased by life {life}")
        elif not owner.arena.is_over:
            covered = {place for life, place in self.books.lessees(places) if life == owner.life}
            if covered != places:
                slots = sorted(slot for _, slot in places - covered)
                raise Violation("I11", f"load {job.copy.id} of {owner} reads slots {slots}, which it has not leased")

    def at_end(self) -> None:
        """Whoever rests has returned all leases."""
        for (life, lease), leased in self.books.leases.items():
            if not next(iter(leased))[0].is_over:
                raise Violation("I11", f"lease {lease} of life {life} is not released, and nothing runs")
