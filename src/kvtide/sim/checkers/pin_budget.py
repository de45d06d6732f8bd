"""I9: pins of stores stay under their budget."""

from __future__ import annotations

from kvtide.core.messages import Plan
from kvtide.sim.checkers.base import Checker
from kvtide.sim.violation import Violation


class PinBudgetChecker(Checker):
    """Counts the blocks of stores in flight."""

    invariant = "I9"

    def plan_made(self, plan: Plan) -> None:
        """Compare with the budget, what the plans say and what the gauge says."""
        pins = max(self.observed.slots_stored, self.observed.gauges.store_pins)
        if pins > self.world.pin_budget:
            raise Violation("I9", f"stores keep {pins} device blocks pinned, and the budget is {self.world.pin_budget}")
