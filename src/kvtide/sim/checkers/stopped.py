"""I8 after a rank has lost its device: nothing is begun any more, and all that was begun comes to an end."""

from __future__ import annotations

from kvtide.core.messages import Plan
from kvtide.sim.checkers.base import Checker
from kvtide.sim.violation import Violation
from kvtide.sim.world import World


class StoppedChecker(Checker):
    """Looks at what plans begin. That the engine comes to rest is seen by others."""

    invariant = "I8"

    @classmethod
    def concerns(cls, world: World) -> bool:
        """Only where a device is lost."""
        return world.stops_at is not None

    def plan_made(self, plan: Plan) -> None:
        """Only loads that were admitted before may begin, in vain."""
        if not self.observed.stopped:
            return
        flights = self.observed.flights
        begun = [copy.id for copy in (*plan.stores, *plan.loads) if not flights[copy.id].orphaned]
        if begun:
            raise Violation("I8", f"a rank cannot copy any more, and transfers {begun} begin")
