"""Everybody who listens, behind the interface of one checker: each word goes to those that want to hear it."""
# ruff: noqa: D102 (what each method is told is said in `Checker`)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvtide.core.groups import Key
from kvtide.core.match import Match
from kvtide.core.messages import Outcome, Plan, Report
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.world import World

if TYPE_CHECKING:
    from kvtide.sim.copies import Job
    from kvtide.sim.rank import Rank
    from kvtide.sim.work import StepWork


class Everybody(Checker):
    """Passes on what it hears. Who has no method of his own for something is not called, because this is hot."""

    def __init__(self, world: World, observed: Observed, checkers: Sequence[Checker]) -> None:
        super().__init__(world, observed)
        self.checkers = checkers
        self._allocated = self._who(Checker.allocated)
        self._taken = self._who(Checker.taken)
        self._freed = self._who(Checker.freed)
        self._pinned = self._who(Checker.pinned)
        self._unpinned = self._who(Checker.unpinned)
        self._slid = self._who(Checker.slid)
        self._before_end = self._who(Checker.before_end)
        self._after_end = self._who(Checker.after_end)
        self._stored = self._who(Checker.stored)
        self._removed = self._who(Checker.removed)
        self._matched = self._who(Checker.matched)
        self._reserved = self._who(Checker.reserved)
        self._given_up = self._who(Checker.given_up)
        self._admitted = self._who(Checker.admitted)
        self._arrived = self._who(Checker.arrived)
        self._after_evicted = self._who(Checker.after_evicted)
        self._advanced = self._who(Checker.advanced)
        self._before_plan = self._who(Checker.before_plan)
        self._planned = self._who(Checker.planned)
        self._plan_made = self._who(Checker.plan_made)
        self._before_report = self._who(Checker.before_report)
        self._reported = self._who(Checker.reported)
        self._before_passed = self._who(Checker.before_passed)
        self._passed = self._who(Checker.passed)
        self._before_reset = self._who(Checker.before_reset)
        self._after_reset = self._who(Checker.after_reset)
        self._compute_begins = self._who(Checker.compute_begins)
        self._compute_ends = self._who(Checker.compute_ends)
        self._copy_begins = self._who(Checker.copy_begins)
        self._polled = self._who(Checker.polled)
        self._after_step = self._who(Checker.after_step)
        self._at_rest = self._who(Checker.at_rest)
        self._at_end = self._who(Checker.at_end)

    def _who(self, method: Callable[..., None]) -> list[Checker]:
        """Return those that have such a method of their own."""
        return [checker for checker in self.checkers if getattr(type(checker), method.__name__) is not method]

    def allocated(self, blocks: Sequence[int]) -> None:
        for checker in self._allocated:
            checker.allocated(blocks)

    def taken(self, blocks: Sequence[int]) -> None:
        for checker in self._taken:
            checker.taken(blocks)

    def freed(self, blocks: Sequence[int]) -> None:
        for checker in self._freed:
            checker.freed(blocks)

    def pinned(self, blocks: Sequence[int]) -> None:
        for checker in self._pinned:
            checker.pinned(blocks)

    def unpinned(self, blocks: Sequence[int]) -> None:
        for checker in self._unpinned:
            checker.unpinned(blocks)

    def slid(self, request: SimRequest, group: int, block: int) -> None:
        for checker in self._slid:
            checker.slid(request, group, block)

    def before_end(self, request: SimRequest, preempted: bool) -> None:
        for checker in self._before_end:
            checker.before_end(request, preempted)

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        for checker in self._after_end:
            checker.after_end(request, preempted)

    def stored(self, contents: list[int]) -> None:
        for checker in self._stored:
            checker.stored(contents)

    def removed(self, contents: list[int]) -> None:
        for checker in self._removed:
            checker.removed(contents)

    def matched(self, request: SimRequest, match: Match) -> None:
        for checker in self._matched:
            checker.matched(request, match)

    def reserved(self, match: Match) -> None:
        for checker in self._reserved:
            checker.reserved(match)

    def given_up(self, request_id: str) -> None:
        for checker in self._given_up:
            checker.given_up(request_id)

    def admitted(self, request: SimRequest, loading: bool, accepted: int) -> None:
        for checker in self._admitted:
            checker.admitted(request, loading, accepted)

    def arrived(self, request: SimRequest, succeeded: bool) -> None:
        for checker in self._arrived:
            checker.arrived(request, succeeded)

    def after_evicted(self, group: int, key: Key) -> None:
        for checker in self._after_evicted:
            checker.after_evicted(group, key)

    def advanced(self, request: SimRequest, computed_tokens: int) -> None:
        for checker in self._advanced:
            checker.advanced(request, computed_tokens)

    def before_plan(self, idle: bool) -> None:
        for checker in self._before_plan:
            checker.before_plan(idle)

    def planned(self, flight: Flight) -> None:
        for checker in self._planned:
            checker.planned(flight)

    def plan_made(self, plan: Plan) -> None:
        for checker in self._plan_made:
            checker.plan_made(plan)

    def before_report(self) -> None:
        for checker in self._before_report:
            checker.before_report()

    def reported(self, outcome: Outcome) -> None:
        for checker in self._reported:
            checker.reported(outcome)

    def before_passed(self) -> None:
        for checker in self._before_passed:
            checker.before_passed()

    def passed(self) -> None:
        for checker in self._passed:
            checker.passed()

    def before_reset(self) -> None:
        for checker in self._before_reset:
            checker.before_reset()

    def after_reset(self, below: bool) -> None:
        for checker in self._after_reset:
            checker.after_reset(below)

    def compute_begins(self, rank: Rank, work: StepWork) -> None:
        for checker in self._compute_begins:
            checker.compute_begins(rank, work)

    def compute_ends(self, rank: Rank, work: StepWork) -> None:
        for checker in self._compute_ends:
            checker.compute_ends(rank, work)

    def copy_begins(self, rank: Rank, job: Job) -> None:
        for checker in self._copy_begins:
            checker.copy_begins(rank, job)

    def polled(self, rank: Rank, report: Report) -> None:
        for checker in self._polled:
            checker.polled(rank, report)

    def after_step(self) -> None:
        for checker in self._after_step:
            checker.after_step()

    def at_rest(self) -> None:
        for checker in self._at_rest:
            checker.at_rest()

    def at_end(self, slots_taken: int) -> None:
        for checker in self._at_end:
            checker.at_end(slots_taken)
