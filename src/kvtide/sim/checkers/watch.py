"""All checkers behind one object that the simulated machine talks to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvtide.core.events import CacheEvent, Cleared, Removed, Stored
from kvtide.core.manager import OffloadManager
from kvtide.core.messages import Outcome, Plan, Report
from kvtide.sim.checkers.base import Checker
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
from kvtide.sim.checkers.reports import ReportsChecker
from kvtide.sim.checkers.single_writer import SingleWriterChecker
from kvtide.sim.checkers.sinking import SinkingChecker
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
    VisibilityChecker,
    ContentChecker,
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

Hook = Callable[..., None]


def _caller_of_all(listeners: list[Hook], arguments: int) -> Hook:
    """Return a function that passes its arguments to all listeners. Without `*args`, because hooks are hot."""

    def call_with_none() -> None:
        for listener in listeners:
            listener()

    def call_with_one(first: Any) -> None:
        for listener in listeners:
            listener(first)

    def call_with_two(first: Any, second: Any) -> None:
        for listener in listeners:
            listener(first, second)

    def call_with_three(first: Any, second: Any, third: Any) -> None:
        for listener in listeners:
            listener(first, second, third)

    return (call_with_none, call_with_one, call_with_two, call_with_three)[arguments]


class Watch:
    """Brings the books up to date, and lets those checkers listen that want to.

    What has no books to keep is handed to the listeners as it is: the hooks that `__init__` makes have the names and
    the arguments of the methods of `Checker`.
    """

    def __init__(self, world: World) -> None:
        self.observed = Observed(world)
        self._checkers = [checker(world, self.observed) for checker in CHECKERS if checker.concerns(world)]
        self.allocated = self._hook("allocated")
        self.taken = self._hook("taken")
        self.freed = self._hook("freed")
        self.pinned = self._hook("pinned")
        self.unpinned = self._hook("unpinned")
        self.slid = self._hook("slid")
        self.before_end = self._hook("before_end")
        self.before_reset = self._hook("before_reset")
        self.compute_begins = self._hook("compute_begins")
        self.compute_ends = self._hook("compute_ends")
        self.copy_begins = self._hook("copy_begins")
        self.polled = self._hook("polled")
        self.after_step = self._hook("after_step")
        self._at_rest = self._hook("at_rest")
        self.before_passed = self._hook("before_passed")
        self._passed = self._hook("passed")
        self.at_end = self._hook("at_end")
        self.matched = self._hook("matched")
        self.reserved = self._hook("reserved")
        self.given_up = self._hook("given_up")
        self._admitted = self._hook("admitted")
        self._arrived = self._hook("arrived")
        self.before_plan = self._hook("before_plan")
        self.after_evicted = self._hook("after_evicted")
        self._advanced = self._hook("advanced")
        self._after_end = self._hook("after_end")
        self._stored = self._hook("stored")
        self._removed = self._hook("removed")
        self._planned = self._hook("planned")
        self._plan_made = self._hook("plan_made")
        self._before_report = self._hook("before_report")
        self._reported = self._hook("reported")
        self._after_reset = self._hook("after_reset")

    def _hook(self, name: str) -> Hook:
        """Return a function that calls the method of this name of every checker that has one of its own."""
        silent = getattr(Checker, name)
        listeners = [getattr(checker, name) for checker in self._checkers if getattr(type(checker), name) is not silent]
        if len(listeners) == 1:
            only: Hook = listeners[0]
            return only
        return _caller_of_all(listeners, arguments=silent.__code__.co_argcount - 1)

    def attach(self, manager: OffloadManager) -> None:
        """Let the checkers ask the manager under test."""
        self._manager = manager
        self._take_events = manager.take_events
        for checker in self._checkers:
            checker.manager = manager

    def attach_pool(self, pool: SimPool) -> None:
        """Let the checkers look at the queue of free device blocks."""
        for checker in self._checkers:
            checker.pool = pool

    def attach_ranks(self, ranks: list[Rank]) -> None:
        """Let the checkers look into the memory of the ranks."""
        for checker in self._checkers:
            checker.ranks = ranks

    # ------------------------------------------------------------------ façade

    def added(self, request: SimRequest) -> None:
        """Hear of a new request."""
        self.observed.requests[request.id] = request
        self.observed.computed[request.id] = 0

    def admitted(self, request: SimRequest, loading: bool, accepted: int) -> None:
        """Hear that a request was given its blocks."""
        self._admitted(request, loading, accepted)
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
        self._arrived(request, succeeded)
        if succeeded:
            observed.computed[request.id] = request.resume_at

    def advanced(self, request: SimRequest, computed_tokens: int) -> None:
        """Hear how far kvtide was told a request is."""
        self.observed.computed[request.id] = computed_tokens
        self._advanced(request, computed_tokens)

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """Hear that a request was preempted or finished."""
        self._follow_events()
        observed = self.observed
        observed.gauges = self._manager.gauges()
        self._after_end(request, preempted)
        observed.computed[request.id] = 0
        if not preempted:
            del observed.requests[request.id]
            del observed.computed[request.id]

    def planned(self, plan: Plan) -> None:
        """Hear what a step asks of the workers."""
        self._follow_events()
        observed = self.observed
        if plan.loads or plan.stores or plan.errands:
            for flight in observed.flights_of(plan):
                self._planned(flight)
                observed.begin(flight)
        observed.gauges = self._manager.gauges()
        self._plan_made(plan)

    def before_report(self, reports: list[Report]) -> None:
        """Hear what the ranks say, before the manager does."""
        self.observed.hear(reports)
        if self.observed.settled:
            self._before_report()

    def reported(self, outcome: Outcome) -> None:
        """Hear what the manager made of it."""
        self._follow_events()
        observed = self.observed
        if observed.settled:
            observed.gauges = self._manager.gauges()
        self._reported(outcome)
        for request_id in outcome.loaded:
            observed.computed[request_id] = observed.requests[request_id].resume_at
        if observed.settled:
            observed.end_settled()

    def passed(self, seconds: float) -> None:
        """Hear how much time has passed."""
        self.observed.passed(seconds)
        self._passed()

    def at_rest(self) -> None:
        """Hear that the engine sleeps. Transfers that are overdue may be under way, and what has to wait for them."""
        overdue = self.observed.overdue
        if not overdue:
            self._at_rest()
        elif len(overdue) < len(self.observed.flights):
            raise Violation("I8", "the engine sleeps while transfers are under way that are not overdue")

    def after_reset(self, below: bool) -> None:
        """Hear that the weights have changed."""
        self._follow_events()
        self.observed.epoch += 1
        for flight in self.observed.flights.values():
            flight.orphaned = True
        self.observed.gauges = self._manager.gauges()
        self._after_reset(below)

    def _follow_events(self) -> None:
        """Read the event stream. Keys are turned into what they stand for with the weights of now."""
        events = self._take_events()
        if events:
            for event in events:
                self._follow(event)

    def _follow(self, event: CacheEvent) -> None:
        observed = self.observed
        if isinstance(event, Stored):
            contents = [observed.stamp_of(event.group, key) for key in event.keys]
            self._stored(contents)
            observed.store(contents)
        elif isinstance(event, Removed):
            contents = [observed.stamp_of(event.group, key) for key in event.keys]
            self._removed(contents)
            observed.remove(contents)
        elif isinstance(event, Cleared):
            observed.clear()

    # ------------------------------------------------------------------ ranks

    def submitted(self, work: StepWork) -> None:
        """Hear what is going to be computed: blocks will hold it when it has run."""
        will_hold = self.observed.will_hold
        for block, content in zip(work.write_blocks, work.write_stamps, strict=True):
            will_hold[block] = content
