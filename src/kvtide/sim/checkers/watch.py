"""All checkers behind one object that the simulated machine talks to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvtide.core.events import CacheEvent, Cleared, Removed, Stored
from kvtide.core.manager import OffloadManager
from kvtide.core.messages import Outcome, Plan, Report
from kvtide.sim.checkers.base import Checker, told
from kvtide.sim.checkers.completeness import CompletenessChecker
from kvtide.sim.checkers.conservation import ConservationChecker
from kvtide.sim.checkers.content import ContentChecker
from kvtide.sim.checkers.lazy import LazyChecker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.checkers.offers import OffersChecker
from kvtide.sim.checkers.overdue import OverdueChecker
from kvtide.sim.checkers.ownership import OwnershipChecker
from kvtide.sim.checkers.pin_budget import PinBudgetChecker
from kvtide.sim.checkers.prefixes import PrefixesChecker
from kvtide.sim.checkers.progress import ProgressChecker
from kvtide.sim.checkers.references import ReferencesChecker
from kvtide.sim.checkers.reports import ReportsChecker
from kvtide.sim.checkers.single_writer import SingleWriterChecker
from kvtide.sim.checkers.sinking import SinkingChecker
from kvtide.sim.checkers.slots import SlotsChecker
from kvtide.sim.checkers.stopped import StoppedChecker
from kvtide.sim.checkers.visibility import VisibilityChecker
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

if TYPE_CHECKING:
    from kvtide.sim.pool import SimPool
    from kvtide.sim.rank import Rank
    from kvtide.sim.work import StepWork

CHECKERS: tuple[type[Checker], ...] = (
    OwnershipChecker,
    SlotsChecker,
    VisibilityChecker,
    ContentChecker,
    ReferencesChecker,
    ConservationChecker,
    CompletenessChecker,
    SingleWriterChecker,
    ProgressChecker,
    PinBudgetChecker,
    LazyChecker,
    PrefixesChecker,
    OffersChecker,
    SinkingChecker,
    OverdueChecker,
    StoppedChecker,
    ReportsChecker,
)

Maker = Callable[[World, Observed], Checker]


class Watch:
    """Brings the books up to date, and lets everybody hear of it. What is told of is explained in `Checker`."""

    def __init__(self, world: World, makers: Sequence[Maker] | None = None) -> None:
        """`makers`: what makes the checkers, if not all of them are to listen that concern this world."""
        self.observed = Observed(world)
        self.manager: OffloadManager
        if makers is None:
            makers = [checker for checker in CHECKERS if checker.concerns(world)]
        checkers = [make(world, self.observed) for make in makers]
        self._checkers = checkers
        self.allocated = told(Checker.allocated, checkers)
        self.taken = told(Checker.taken, checkers)
        self.freed = told(Checker.freed, checkers)
        self.pinned = told(Checker.pinned, checkers)
        self.unpinned = told(Checker.unpinned, checkers)
        self.slid = told(Checker.slid, checkers)
        self.before_end = told(Checker.before_end, checkers)
        self.stored = told(Checker.stored, checkers)
        self.removed = told(Checker.removed, checkers)
        self.matched = told(Checker.matched, checkers)
        self.reserved = told(Checker.reserved, checkers)
        self.given_up = told(Checker.given_up, checkers)
        self.after_evicted = told(Checker.after_evicted, checkers)
        self.before_plan = told(Checker.before_plan, checkers)
        self.planned = told(Checker.planned, checkers)
        self.plan_made = told(Checker.plan_made, checkers)
        self.before_report = told(Checker.before_report, checkers)
        self.before_passed = told(Checker.before_passed, checkers)
        self.passed = told(Checker.passed, checkers)
        self.before_reset = told(Checker.before_reset, checkers)
        self.compute_begins = told(Checker.compute_begins, checkers)
        self.compute_ends = told(Checker.compute_ends, checkers)
        self.copy_begins = told(Checker.copy_begins, checkers)
        self.polled = told(Checker.polled, checkers)
        self.after_step = told(Checker.after_step, checkers)
        self.at_end = told(Checker.at_end, checkers)
        self._tell_admitted = told(Checker.admitted, checkers)
        self._tell_arrived = told(Checker.arrived, checkers)
        self._tell_advanced = told(Checker.advanced, checkers)
        self._tell_after_end = told(Checker.after_end, checkers)
        self._tell_reported = told(Checker.reported, checkers)
        self._tell_after_reset = told(Checker.after_reset, checkers)
        self._tell_at_rest = told(Checker.at_rest, checkers)

    def attach(self, manager: OffloadManager, pool: SimPool, ranks: list[Rank]) -> None:
        """Let the checkers ask the manager under test, and look at the free device blocks and into all memory."""
        self.manager = manager
        for checker in self._checkers:
            checker.manager, checker.pool, checker.ranks = manager, pool, ranks

    # ------------------------------------------------------------------ façade

    def added(self, request: SimRequest) -> None:
        """Hear of a new request."""
        self.observed.requests[request.id] = request
        self.observed.computed[request.id] = 0

    def admitted(self, request: SimRequest, loading: bool, accepted: int) -> None:
        """Hear that a request was given its blocks."""
        self._tell_admitted(request, loading, accepted)
        if loading:
            self.observed.loads_due.append(request)

    def arrived(self, request: SimRequest, succeeded: bool) -> None:
        """Hear that a request goes on before its load has ended, or cannot."""
        observed = self.observed
        flight = observed.flights[request.load_id or 0]
        if not succeeded and not flight.orphaned and not flight.failed:
            raise Violation("I8", f"the load of {request.id} is certain, and counts as failed")
        if succeeded and flight.failed:
            raise Violation("I8", f"the load of {request.id} is overdue, and counts as done")
        if succeeded and flight.orphaned:
            raise Violation("I4", f"the load of {request.id} began before a reset, and counts as done")
        flight.request = None
        self._tell_arrived(request, succeeded)
        if succeeded:
            observed.computed[request.id] = request.resume_at

    def advanced(self, request: SimRequest, computed_tokens: int) -> None:
        """Hear how far kvtide was told a request is."""
        self.observed.computed[request.id] = computed_tokens
        self._tell_advanced(request, computed_tokens)

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """Hear that a request was preempted or finished."""
        self._follow_events()
        observed = self.observed
        observed.gauges = self.manager.gauges()
        self._tell_after_end(request, preempted)
        observed.computed[request.id] = 0
        if not preempted:
            del observed.requests[request.id]
            del observed.computed[request.id]

    def take_plan(self, plan: Plan) -> None:
        """Hear what a step asks of the workers."""
        self._follow_events()
        observed = self.observed
        if plan.loads or plan.stores or plan.errands:
            for flight in observed.flights_of(plan):
                self.planned(flight)
                observed.begin(flight)
        observed.gauges = self.manager.gauges()
        self.plan_made(plan)

    def take_reports(self, reports: list[Report]) -> None:
        """Hear what the ranks say, before the manager does."""
        self.observed.hear(reports)
        if self.observed.settled:
            self.before_report()

    def reported(self, outcome: Outcome) -> None:
        """Hear what the manager made of it."""
        self._follow_events()
        observed = self.observed
        if not (observed.settled or outcome.loaded or outcome.failed or observed.given_up):
            return  # nothing is over, as in most steps
        observed.gauges = self.manager.gauges()
        self._tell_reported(outcome)
        for request_id in outcome.loaded:
            observed.computed[request_id] = observed.requests[request_id].resume_at
        observed.end_settled()

    def take_time(self, seconds: float) -> None:
        """Hear how much time has passed."""
        self.observed.passed(seconds)
        self.passed()

    def at_rest(self) -> None:
        """Hear that the engine sleeps. Transfers that are overdue may be under way, and what has to wait for them."""
        overdue = self.observed.overdue
        if not overdue:
            self._tell_at_rest()
        elif len(overdue) < len(self.observed.flights):
            raise Violation("I8", "the engine sleeps while transfers are under way that are not overdue")

    def after_reset(self, below: bool) -> None:
        """Hear that the weights have changed."""
        self._follow_events()
        self.observed.epoch += 1
        for flight in self.observed.flights.values():
            flight.orphaned = True
        self.observed.gauges = self.manager.gauges()
        self._tell_after_reset(below)

    def _follow_events(self) -> None:
        """Read the event stream. Keys are turned into what they stand for with the weights of now."""
        for event in self.manager.take_events():
            self._follow(event)

    def _follow(self, event: CacheEvent) -> None:
        observed = self.observed
        if isinstance(event, Stored):
            contents = [observed.stamp_of(event.group, key) for key in event.keys]
            self.stored(contents)
            observed.store(contents)
        elif isinstance(event, Removed):
            contents = [observed.stamp_of(event.group, key) for key in event.keys]
            self.removed(contents)
            observed.remove(contents)
        elif isinstance(event, Cleared):
            observed.clear()

    # ------------------------------------------------------------------ ranks

    def submitted(self, work: StepWork) -> None:
        """Hear what is going to be computed: blocks will hold it when it has run."""
        will_hold = self.observed.will_hold
        for block, content in zip(work.write_blocks, work.write_stamps, strict=True):
            will_hold[block] = content
