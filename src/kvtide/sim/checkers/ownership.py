"""I1: a device block that a transfer uses is nobody else's until the transfer is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.violation import Violation

if TYPE_CHECKING:
    from kvtide.sim.copies import Job
    from kvtide.sim.rank import Rank
    from kvtide.sim.work import StepWork


class OwnershipChecker(Checker):
    """Knows which blocks are in use by transfers, from the plans and the reports."""

    invariant = "I1"

    def allocated(self, blocks: Sequence[int]) -> None:
        """A block with a transfer in flight must not be given to anyone."""
        busy = self.observed.blocks_busy
        if busy:
            for block in blocks:
                if block in busy:
                    raise Violation("I1", f"device block {block} is given out while a transfer uses it")

    def planned(self, flight: Flight) -> None:
        """Blocks must be kept for it."""
        observed = self.observed
        for block in flight.blocks:
            if not observed.pins[block]:
                raise Violation("I1", f"transfer {flight.id} uses device block {block}, which nothing keeps pinned")

    def compute_begins(self, rank: Rank, work: StepWork) -> None:
        """Compute must not meet a copy that runs."""
        for job in rank.copies.running.values():
            _check_apart(rank, work, job)

    def copy_begins(self, rank: Rank, job: Job) -> None:
        """A copy must not meet compute that runs."""
        if rank.computing is not None:
            _check_apart(rank, rank.computing, job)


def _check_apart(rank: Rank, work: StepWork, job: Job) -> None:
    """A store may share blocks with compute that only reads them; everything else is against the direction."""
    for block in job.copy.blocks:
        if block in work.write_blocks or (not job.is_store and block in work.read_blocks):
            kind = "store" if job.is_store else "load"
            raise Violation(
                "I1",
                f"{kind} {job.copy.id} and the compute of step {work.step} meet in block {block} on rank {rank.index}",
            )
