"""I5 for the memory of a node: copies use only slots that every rank has said to be ready, in the same life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtide.core.messages import Plan, Report
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

if TYPE_CHECKING:
    from kvtide.sim.rank import Rank


class ReadyChecker(Checker):
    """Remembers what each rank has said, in which life: about other memory that means nothing."""

    invariant = "I5"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._said: dict[tuple[int, int], int] = {}
        """The most slots, by rank and life."""

    def polled(self, rank: Rank, report: Report) -> None:
        """Take note of it, however late it is heard."""
        if report.slots_ready is not None:
            said = rank.index, report.life
            self._said[said] = max(self._said.get(said, 0), report.slots_ready)

    def plan_made(self, plan: Plan) -> None:
        """Compare the slots of its copies."""
        for copy in (*plan.loads, *plan.stores):
            for rank in self.ranks:
                ready = self._said.get((rank.index, copy.life), 0)
                if max(copy.slots) >= ready:
                    raise Violation(
                        "I5",
                        f"copy {copy.id} uses slots {list(copy.slots)} of life {copy.life}, "
                        f"and of these rank {rank.index} has only said that it has {ready}",
                    )
