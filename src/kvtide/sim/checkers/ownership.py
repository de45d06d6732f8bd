"""I1 and I2: what a transfer uses, on either side, is nobody else's until the transfer is over."""

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
    """Knows which blocks and slots are in use by transfers, from the plans and the reports."""

    invariant = "I1"

    def allocated(self, blocks: Sequence[int]) -> None:
        """A block with a transfer in flight must not be given to anyone."""
        busy = self.observed.blocks_busy
        if busy:
            for block in blocks:
                if block in busy:
                    raise Violation("I1", f"device block {block} is given out while a transfer uses it")

    def planned(self, flight: Flight) -> None:
        """Blocks must be kept for it; slots must be free to be written, and hold the right key to be read."""
        observed = self.observed
        for block in flight.blocks:
            if not observed.pins[block]:
                raise Violation("I1", f"transfer {flight.id} uses device block {block}, which nothing keeps pinned")
        for slot, content in zip(flight.slots, flight.stamps, strict=True):
            if slot in observed.slots_written:
                raise Violation("I2", f"transfer {flight.id} uses slot {slot}, which is being written")
            if slot >= len(self.ranks[0].host):
                raise Violation("I2", f"transfer {flight.id} uses slot {slot}, which does not exist")
            self._check_slot(flight, slot, content)

    def _check_slot(self, flight: Flight, slot: int, content: int) -> None:
        observed = self.observed
        if flight.writes_host:
            if slot in observed.slots_read or slot in observed.slots_sinking:
                raise Violation("I2", f"{flight.kind} {flight.id} writes slot {slot}, which is being read")
            if slot in observed.slots_visible:
                raise Violation("I2", f"{flight.kind} {flight.id} writes slot {slot}, which holds a visible key")
        elif flight.leaving:
            self._check_leaving(flight, slot, content)
        elif observed.visible.get(content) != slot and not flight.orphaned:
            what = observed.tokens.describe(content)
            raise Violation("I2", f"{flight.kind} {flight.id} reads slot {slot}, which does not hold {what}")

    def _check_leaving(self, flight: Flight, slot: int, content: int) -> None:
        """A slot that was given up must still have its bytes, and be nobody else's."""
        if slot in self.observed.slots_visible or slot in self.observed.slots_read:
            raise Violation("I2", f"sink {flight.id} takes slot {slot} away from others")
        for rank in self.ranks:
            if rank.host[slot] != content:
                what = self.observed.tokens.describe(content)
                raise Violation("I2", f"sink {flight.id} reads slot {slot}, which does not hold {what}")

    def removed(self, contents: list[int]) -> None:
        """What is being read must not be evicted."""
        observed = self.observed
        if observed.slots_read or observed.slots_sinking:
            for content in contents:
                slot = observed.visible.get(content)
                if slot is not None and observed.is_read(slot):
                    raise Violation("I2", f"{observed.tokens.describe(content)} is evicted while it is read")

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
