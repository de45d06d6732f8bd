"""I8: every request finishes, and every wait ends."""

from __future__ import annotations

from kvtide.core.messages import Outcome
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

STALL_STEPS_MAX = 400
"""No copy, report or step is delayed by anything near this: who makes no progress for so long never will."""


class ProgressChecker(Checker):
    """Watches the furthest point that each request has ever reached."""

    invariant = "I8"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._progress = -1
        self._stalled_steps = 0
        self._settled = 0

    def reported(self, outcome: Outcome) -> None:
        """The engine is only told of requests that wait for a load, and of each that does."""
        settled = self.observed.settled
        self._settled += len(settled)
        ended = (set(outcome.loaded) | set(outcome.failed)).difference(outcome.overdue)
        waiting = {
            flight.request.id for flight in settled if flight.request is not None and self.observed.is_awaited(flight)
        }
        if waiting - ended:
            raise Violation("I8", f"the loads of {sorted(waiting - ended)} are over and the engine is not told")
        for request_id in sorted(ended - waiting):
            request = self.observed.requests.get(request_id)
            if request is None or request not in self.observed.loads_due:
                raise Violation("I8", f"the engine is told of a load of {request_id}, which does not wait for one")
            self.observed.loads_due.remove(request)  # settled without any worker's help

    def after_step(self) -> None:
        """Count steps without progress. While there are no requests, copies that end and answers are progress too."""
        requests = self.observed.requests
        progress = self.observed.progress if requests else self._settled + self.observed.answers
        if progress != self._progress:
            self._progress = progress
            self._stalled_steps = 0
            return
        self._stalled_steps += 1
        if self._stalled_steps > STALL_STEPS_MAX:
            states = ", ".join(f"{request.id} {request.state.name.lower()}" for request in requests.values())
            raise Violation("I8", f"no progress for {STALL_STEPS_MAX} steps: {states or 'copies do not end'}")
