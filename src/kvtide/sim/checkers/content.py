"""I4: a load delivers exactly the bytes that were computed for its key, and compute reads nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtide.core.messages import Outcome
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

if TYPE_CHECKING:
    from kvtide.sim.rank import Rank
    from kvtide.sim.work import StepWork


class ContentChecker(Checker):
    """Compares stamps: what is in memory with what the tokens determine."""

    invariant = "I4"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._loads_moved = [0] * world.ranks

    def planned(self, flight: Flight) -> None:
        """A block that is stored must be full: only whole blocks have keys."""
        if flight.is_store:
            for block, content in zip(flight.blocks, flight.stamps, strict=True):
                if not self.observed.is_full_block(content):
                    what = self.observed.tokens.describe(content)
                    raise Violation("I4", f"store {flight.id} takes block {block}, which will hold {what}: not a block")

    def reported(self, outcome: Outcome) -> None:
        """What counts as loaded must be there, on every rank."""
        for flight in self.observed.settled if outcome.loaded else ():
            request = flight.request
            if request is None or request.id not in outcome.loaded:
                continue
            if flight.life == request.life and self.observed.requests.get(request.id) is request:
                self._check_loaded(flight)

    def _check_loaded(self, flight: Flight) -> None:
        assert flight.request is not None
        if flight.orphaned:
            raise Violation("I4", f"load {flight.id} of {flight.request.id} counts as done, and brought old weights")
        for rank in self.ranks:
            for block, content in zip(flight.blocks, flight.stamps, strict=True):
                if rank.device[block] != content:
                    describe = self.observed.tokens.describe
                    raise Violation(
                        "I4",
                        f"load {flight.id} of {flight.request.id} counts as done and rank {rank.index} has in block "
                        f"{block} {describe(rank.device[block])} instead of {describe(content)}",
                    )

    def compute_begins(self, rank: Rank, work: StepWork) -> None:
        """Look at everything that the step reads."""
        device = rank.device
        if [device[block] for block in work.read_blocks] != work.read_stamps:
            self._wrong_read(rank, work)
        self._loads_moved[rank.index] = rank.loads_moved

    def compute_ends(self, rank: Rank, work: StepWork) -> None:
        """Look again, if a load has moved meanwhile: what was read must not have changed."""
        if rank.loads_moved != self._loads_moved[rank.index]:
            device = rank.device
            if [device[block] for block in work.read_blocks] != work.read_stamps:
                self._wrong_read(rank, work)

    def _wrong_read(self, rank: Rank, work: StepWork) -> None:
        describe = self.observed.tokens.describe
        for block, content in zip(work.read_blocks, work.read_stamps, strict=True):
            if rank.device[block] != content:
                raise Violation(
                    "I4",
                    f"compute of step {work.step} on rank {rank.index} reads block {block}: "
                    f"{describe(rank.device[block])} instead of {describe(content)}",
                )
