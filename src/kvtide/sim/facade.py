"""The manager under test, with the checkers listening to every word between it and the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtide.core.groups import Key
from kvtide.core.index.link import Link
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.remote import RemoteIndex
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Match
from kvtide.core.messages import Outcome, Plan, Report
from kvtide.sim.configuration import config_of
from kvtide.sim.pool import SimPool
from kvtide.sim.request import SimRequest
from kvtide.sim.run import Run
from kvtide.sim.tables import FoundTable


class WatchedManager:
    """Forwards calls to a real `OffloadManager`, `manager`, if checkers are to be told before or after."""

    def __init__(self, run: Run, pool: SimPool, link: Link | None = None) -> None:
        world = run.world
        self._pool = pool
        self._groups = world.groups
        self._finds_dropped = world.habits.finds_dropped
        config = config_of(world)
        remembered = config.slots if world.node is not None and world.node.remembers else 0
        index = RemoteIndex(link, config.geometry.groups, remember_blocks=remembered) if link is not None else None
        self.manager = OffloadManager(config, pool, slots_ready=world.slots_ready, index=index)
        self._watch = run.watch
        self._log = run.log
        self.steps = 0
        """Plans so far, which is the number of the last step."""

    def add_request(self, request: SimRequest) -> None:
        """See `OffloadManager.add_request`."""
        self.manager.add_request(request.id, request.keys, self._tables_of(request))
        self._watch.added(request)

    def _tables_of(self, request: SimRequest) -> Sequence[Sequence[int]]:
        """Return the block tables that kvtide is to see."""
        if not self._finds_dropped:
            return request.tables
        return [
            FoundTable(request, index, self._pool) if group.forgets else request.tables[index]
            for index, group in enumerate(self._groups)
        ]

    def match(self, request_id: str, device_tokens: int, num_tokens: int) -> Match:
        """See `OffloadManager.match`."""
        match = self.manager.match(request_id, device_tokens, num_tokens)
        self._watch.matched(self._watch.observed.requests[request_id], match)
        return match

    def reserve(self, match: Match) -> None:
        """See `OffloadManager.reserve`."""
        if self._log:
            self._log.add(f"{match.request_id} is offered {match.tokens} tokens behind {match.device_tokens}")
        self.manager.reserve(match)
        self._watch.reserved(match)

    def give_up(self, request_id: str) -> None:
        """See `OffloadManager.give_up`."""
        if self._log:
            self._log.add(f"{request_id} finds no room")
        self.manager.give_up(request_id)
        self._watch.given_up(request_id)

    def admit(self, request: SimRequest, accepted_tokens: int) -> bool:
        """See `OffloadManager.admit`."""
        request.being_placed = True
        loading = self.manager.admit(request.id, accepted_tokens)
        request.being_placed = False
        if self._log:
            how = f"loads {accepted_tokens} tokens" if loading else "runs"
            self._log.add(f"{request.id} is admitted at {request.device_tokens} and {how}, blocks {request.tables}")
        self._watch.admitted(request, loading, accepted_tokens)
        return loading

    def arrived(self, request: SimRequest) -> bool:
        """See `OffloadManager.arrived`."""
        succeeded = self.manager.arrived(request.id)
        if self._log:
            how = "goes on before its load has ended" if succeeded else "cannot go on"
            self._log.add(f"{request.id} {how}")
        self._watch.arrived(request, succeeded)
        return succeeded

    def evicted(self, group: int, key: Key) -> None:
        """See `OffloadManager.evicted`."""
        self.manager.evicted(group, key)
        self._watch.after_evicted(group, key)

    def advance(self, request: SimRequest, computed_tokens: int) -> None:
        """See `OffloadManager.advance`."""
        self.manager.advance(request.id, computed_tokens)
        self._watch.advanced(request, computed_tokens)

    def preempt(self, request: SimRequest) -> None:
        """See `OffloadManager.preempt`."""
        if self._log:
            self._log.add(f"{request.id} is preempted")
        self._end(request, self.manager.preempt, preempted=True)

    def finish(self, request: SimRequest) -> None:
        """See `OffloadManager.finish`."""
        if self._log:
            self._log.add(f"{request.id} is over")
        self._end(request, self.manager.finish, preempted=False)

    def _end(self, request: SimRequest, end: Callable[[str], None], *, preempted: bool) -> None:
        self._watch.before_end(request, preempted)
        end(request.id)
        self._watch.after_end(request, preempted)

    def plan(self, *, idle: bool) -> Plan:
        """See `OffloadManager.plan`."""
        self._watch.before_plan(idle)
        plan = self.manager.plan(idle=idle)
        self.steps = plan.step
        if self._log and plan:
            self._log.add(_describe(plan))
        self._watch.take_plan(plan)
        return plan

    def report(self, reports: list[Report]) -> Outcome:
        """See `OffloadManager.report`."""
        if self._log:
            for report in reports:
                self._log.add(f"rank {report.rank} reports done {list(report.done)}, failed {list(report.failed)}")
        self._watch.take_reports(reports)
        outcome = self.manager.report(*reports)
        if self._log and (outcome.loaded or outcome.failed):
            overdue = f", {list(outcome.overdue)} overdue" if outcome.overdue else ""
            self._log.add(f"loaded {list(outcome.loaded)}, failed to load {list(outcome.failed)}{overdue}")
        self._watch.reported(outcome)
        return outcome

    def passed(self, seconds: int) -> None:
        """See `OffloadManager.passed`, for which a call is a second at most."""
        self._watch.before_passed()
        for _ in range(seconds):
            self.manager.passed(1.0)
        self._watch.take_time(seconds)

    def reset(self) -> None:
        """See `OffloadManager.reset`."""
        if self._log:
            self._log.add("the weights change")
        self._watch.before_reset()
        self.manager.reset()
        self._watch.after_reset(below=True)

    def stop(self) -> None:
        """See `OffloadManager.stop`."""
        if self._log:
            self._log.add("a rank has lost its device")
        self._watch.before_reset()
        self.manager.stop()
        self._watch.observed.stopped = True
        self._watch.after_reset(below=False)

    def take_all_slots(self) -> int:
        """Ask for every host slot, as a store would; return how many there were. Only when everything is over."""
        self._watch.at_rest()
        index = self.manager._index
        assert isinstance(index, LocalIndex)
        return len(index.host.take(self.manager.gauges().slots))


def _describe(plan: Plan) -> str:
    parts = [f"plan {plan.step}"]
    parts += [f"load {copy.id}: slots {list(copy.slots)} to blocks {list(copy.blocks)}" for copy in plan.loads]
    parts += [f"store {copy.id}: blocks {list(copy.blocks)} to slots {list(copy.slots)}" for copy in plan.stores]
    parts += [f"errand {errand}" for errand in plan.errands]
    if plan.wait_for:
        parts.append(f"wait for {list(plan.wait_for)}")
    if plan.ask:
        parts.append(f"ask for {list(plan.ask)}")
    return "; ".join(parts)
