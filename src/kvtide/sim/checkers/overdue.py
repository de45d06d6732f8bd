"""I8 for transfers that some rank does not report: after a minute nobody waits for them, and nothing new is begun.

Which are overdue is known from the plans, the reports and the time that the engine tells. Their blocks and slots stay
in the books until every rank has spoken, so what I1, I2 and I5 say of transfers in flight holds for them too.
"""

from __future__ import annotations

from kvtide.core.match import Match
from kvtide.core.messages import Outcome, Plan
from kvtide.core.reasons import NotLoaded
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

AWAKE_STEPS_MAX = 4
"""What the last reports have left to do is done in fewer steps."""


class OverdueChecker(Checker):
    """Knows who need not wait any longer, what ranks must be asked, and what may not begin meanwhile."""

    invariant = "I8"

    @classmethod
    def concerns(cls, world: World) -> bool:
        """Only where kvtide is told the time."""
        return world.step_s > 0

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._begun_before = 0
        """Blocks whose store had begun, without a plan that names it, when the first transfer was overdue."""
        self._awake_steps = 0

    def before_passed(self) -> None:
        """See what is begun by now, as long as anything may be."""
        if not self.observed.overdue:
            self._begun_before = self.manager.gauges().store_pins - self.observed.slots_stored

    def passed(self) -> None:
        """Compare the counter with what is overdue by the observer's clock."""
        observed = self.observed
        if (self.manager.overdue is not None) != bool(observed.overdue):
            raise Violation("I8", f"{list(observed.overdue)} are overdue, and the manager says {self.manager.overdue}")
        counted = self.manager.metrics.transfers_overdue
        if counted != observed.overdue_total:
            raise Violation("I6", f"{observed.overdue_total} transfers were overdue, and {counted} are counted")

    def reported(self, outcome: Outcome) -> None:
        """Each request whose load is overdue is told of, once."""
        waiting = {flight.request.id for flight in self.observed.take_given_up() if flight.request is not None}
        if set(outcome.overdue) != waiting or not waiting <= set(outcome.failed):
            raise Violation("I8", f"the loads of {sorted(waiting)} are overdue, and the engine is told {outcome}")

    def matched(self, request: SimRequest, match: Match) -> None:
        """Nothing is offered, and nobody begins to wait for what is below."""
        if not self.observed.overdue:
            return
        expected = {NotLoaded.NO_REPORT: match.num_tokens - match.device_tokens}
        if match.tokens or match.waits or match.missed != expected:
            raise Violation("I8", f"transfers are overdue, and {request.id} is offered {match.tokens} tokens: {match}")

    def plan_made(self, plan: Plan) -> None:
        """All ranks are asked for what is overdue, and nothing is stored that had not begun before."""
        overdue = self.observed.overdue
        if set(plan.ask) != overdue.keys() or len(plan.ask) != len(overdue):
            raise Violation("I8", f"transfers {list(overdue)} are overdue, and ranks are asked for {list(plan.ask)}")
        stored = sum(len(store.blocks) for store in plan.stores)
        if overdue and stored > self._begun_before:
            raise Violation("I8", f"transfers are overdue, and {stored} blocks begin to be stored")
        self._begun_before = 0
        if overdue and self.observed.gauges.searches and not self._any_search_goes_on():
            raise Violation(
                "I8", f"requests wait for what is below the host, and all of that is overdue: {list(overdue)}"
            )

    def _any_search_goes_on(self) -> bool:
        observed = self.observed
        searching = (flight.id for flight in observed.flights.values() if flight.kind in ("lookup", "fetch"))
        return any(flight not in observed.overdue for flight in searching)

    def after_step(self) -> None:
        """What is overdue does not keep an idle engine awake, nor does what has to wait for it."""
        observed = self.observed
        waits_in_vain = 0 < len(observed.overdue) == len(observed.flights) and not observed.requests
        self._awake_steps = self._awake_steps + 1 if waits_in_vain and self.manager.busy else 0
        if self._awake_steps > AWAKE_STEPS_MAX:
            raise Violation("I8", f"there is nothing to do, and {list(observed.overdue)} keep the engine awake")
