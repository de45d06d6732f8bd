"""The manager under test, with the checkers listening to every word between it and the engine."""

from __future__ import annotations

from kvtide.core.device import DevicePool
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Match
from kvtide.core.wire import Outcome, Plan, Report
from kvtide.sim.configuration import config_of
from kvtide.sim.request import SimRequest
from kvtide.sim.run import Run


class WatchedManager:
    """Forwards every call to a real `OffloadManager`, and tells the checkers before or after."""

    def __init__(self, run: Run, pool: DevicePool) -> None:
        world = run.world
        self.manager = OffloadManager(config_of(world), pool, slots_ready=world.slots_ready)
        self._watch = run.watch
        self._log = run.log
        self.steps = 0
        """Plans so far, which is the number of the last step."""
        run.watch.attach(self.manager)

    def add_request(self, request: SimRequest) -> None:
        """See `OffloadManager.add_request`."""
        self.manager.add_request(request.id, request.keys, request.tables)
        self._watch.added(request)

    def match(self, request_id: str, device_tokens: int, num_tokens: int) -> Match:
        """See `OffloadManager.match`."""
        return self.manager.match(request_id, device_tokens, num_tokens)

    def reserve(self, match: Match) -> None:
        """See `OffloadManager.reserve`."""
        if self._log:
            self._log.add(f"{match.request_id} is offered {match.tokens} tokens behind {match.device_tokens}")
        self.manager.reserve(match)

    def give_up(self, request_id: str) -> None:
        """See `OffloadManager.give_up`."""
        if self._log:
            self._log.add(f"{request_id} finds no room")
        self.manager.give_up(request_id)

    def admit(self, request: SimRequest, accepted_tokens: int) -> bool:
        """See `OffloadManager.admit`."""
        loading = self.manager.admit(request.id, accepted_tokens)
        if self._log:
            how = f"loads {accepted_tokens} tokens" if loading else "runs"
            self._log.add(f"{request.id} is admitted at {request.device_tokens} and {how}, blocks {request.tables}")
        self._watch.admitted(request, loading)
        return loading

    def advance(self, request: SimRequest, computed_tokens: int) -> None:
        """See `OffloadManager.advance`."""
        self.manager.advance(request.id, computed_tokens)
        self._watch.advanced(request, computed_tokens)

    def preempt(self, request: SimRequest) -> None:
        """See `OffloadManager.preempt`."""
        if self._log:
            self._log.add(f"{request.id} is preempted")
        self._watch.before_end(request, True)
        self.manager.preempt(request.id)
        self._watch.after_end(request, preempted=True)

    def finish(self, request: SimRequest) -> None:
        """See `OffloadManager.finish`."""
        if self._log:
            self._log.add(f"{request.id} is over")
        self._watch.before_end(request, False)
        self.manager.finish(request.id)
        self._watch.after_end(request, preempted=False)

    def plan(self, *, idle: bool) -> Plan:
        """See `OffloadManager.plan`."""
        plan = self.manager.plan(idle=idle)
        self.steps = plan.step
        if self._log and plan:
            self._log.add(_describe(plan))
        self._watch.planned(plan)
        return plan

    def report(self, reports: list[Report]) -> Outcome:
        """See `OffloadManager.report`."""
        if self._log:
            for report in reports:
                self._log.add(f"rank {report.rank} reports done {list(report.done)}, failed {list(report.failed)}")
        self._watch.before_report(reports)
        outcome = self.manager.report(*reports)
        if self._log and (outcome.loaded or outcome.failed):
            self._log.add(f"loaded {list(outcome.loaded)}, failed to load {list(outcome.failed)}")
        self._watch.reported(outcome)
        return outcome

    def reset(self) -> None:
        """See `OffloadManager.reset`."""
        if self._log:
            self._log.add("the weights change")
        self._watch.before_reset()
        self.manager.reset()
        self._watch.after_reset()

    @property
    def busy(self) -> bool:
        """See `OffloadManager.busy`."""
        return self.manager.busy


def _describe(plan: Plan) -> str:
    parts = [f"plan {plan.step}"]
    parts += [f"load {copy.id}: slots {list(copy.slots)} to blocks {list(copy.blocks)}" for copy in plan.loads]
    parts += [f"store {copy.id}: blocks {list(copy.blocks)} to slots {list(copy.slots)}" for copy in plan.stores]
    parts += [f"errand {errand}" for errand in plan.errands]
    if plan.wait_for:
        parts.append(f"wait for {list(plan.wait_for)}")
    return "; ".join(parts)
