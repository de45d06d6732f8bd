"""The interface of a checker: everything it may listen to. Each method does nothing unless a checker wants it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

from kvtide.core.groups import Key
from kvtide.core.manager import OffloadManager
from kvtide.core.match import Match
from kvtide.core.messages import Outcome, Plan, Report
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.world import World

if TYPE_CHECKING:
    from kvtide.sim.copies import Job
    from kvtide.sim.pool import SimPool
    from kvtide.sim.rank import Rank
    from kvtide.sim.work import StepWork

P = ParamSpec("P")


class Checker:
    """Listens, keeps books of its own, and raises `Violation`."""

    invariant = ""

    @classmethod
    def concerns(cls, world: World) -> bool:  # noqa: ARG003 (most look at every world)
        """Whether there is anything to look at in a world."""
        return True

    def __init__(self, world: World, observed: Observed) -> None:
        self.world = world
        self.observed = observed
        self.manager: OffloadManager
        self.pool: SimPool
        self.ranks: list[Rank]

    # ------------------------------------------------------------------ engine and device pool

    def allocated(self, blocks: Sequence[int]) -> None:
        """The engine has given out blocks."""

    def taken(self, blocks: Sequence[int]) -> None:
        """The engine uses blocks that were found."""

    def freed(self, blocks: Sequence[int]) -> None:
        """The engine is about to return blocks."""

    def pinned(self, blocks: Sequence[int]) -> None:
        """Blocks were pinned by kvtide."""

    def unpinned(self, blocks: Sequence[int]) -> None:
        """Pins are about to be returned by kvtide."""

    def slid(self, request: SimRequest, group: int, block: int) -> None:
        """The engine is about to give up the block with this index, which is out of its window."""

    # ------------------------------------------------------------------ façade

    def before_end(self, request: SimRequest, preempted: bool) -> None:
        """A request is about to be preempted or finished."""

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """A request was preempted or finished."""

    def stored(self, contents: list[int]) -> None:
        """These can be loaded from now on; they are entered in the books right after this."""

    def removed(self, contents: list[int]) -> None:
        """These were evicted; they leave the books right after this."""

    def matched(self, request: SimRequest, match: Match) -> None:
        """The manager has said what it can offer a request."""

    def reserved(self, match: Match) -> None:
        """What was matched is kept."""

    def given_up(self, request_id: str) -> None:
        """What was matched is not kept any longer."""

    def admitted(self, request: SimRequest, loading: bool, accepted: int) -> None:
        """A request was given its blocks, and takes so many tokens of its offer."""

    def arrived(self, request: SimRequest, succeeded: bool) -> None:
        """A request goes on before its load has ended, or cannot."""

    def after_evicted(self, group: int, key: Key) -> None:
        """The manager was told that the device holds a key no longer."""

    def advanced(self, request: SimRequest, computed_tokens: int) -> None:
        """The manager was told how far a request is computed."""

    def before_plan(self, idle: bool) -> None:
        """The manager is about to be asked for a plan, of a step that computes nothing if `idle`."""

    def planned(self, flight: Flight) -> None:
        """A transfer was planned; it is entered in the books right after this."""

    def plan_made(self, plan: Plan) -> None:
        """All transfers of a plan are in the books."""

    def before_report(self) -> None:
        """The manager is about to hear what ended the transfers in `observed.settled`, of which there are some."""

    def reported(self, outcome: Outcome) -> None:
        """The manager has answered, if anything is over or overdue; `observed.settled` leaves the books right after."""

    def before_passed(self) -> None:
        """The manager is about to be told how much time has passed."""

    def passed(self) -> None:
        """It was told, and what is overdue now is in the books."""

    def before_reset(self) -> None:
        """The weights are about to change, or a rank has lost its device."""

    def after_reset(self, below: bool) -> None:
        """The weights have changed, or the device is lost. `below`: what lies below the host is to be emptied."""

    # ------------------------------------------------------------------ ranks

    def compute_begins(self, rank: Rank, work: StepWork) -> None:
        """A rank begins to compute a step."""

    def compute_ends(self, rank: Rank, work: StepWork) -> None:
        """A rank is about to write what it has computed."""

    def copy_begins(self, rank: Rank, job: Job) -> None:
        """A rank begins a copy."""

    def polled(self, rank: Rank, report: Report) -> None:
        """The worker of a rank has been asked for its report; what becomes of that on its way is another thing."""

    # ------------------------------------------------------------------ time

    def after_step(self) -> None:
        """A step of the engine is over."""

    def at_rest(self) -> None:
        """No request is left and nothing is in flight."""

    def at_end(self, slots_taken: int) -> None:
        """The world is over. So many slots could be taken when all were asked for."""


def told(method: Callable[Concatenate[Checker, P], None], checkers: Sequence[Checker]) -> Callable[P, None]:
    """Return what tells those checkers something that have such a method of their own. By position: this is hot."""
    name = method.__name__
    methods = [getattr(checker, name) for checker in checkers if getattr(type(checker), name) is not method]

    def tell(*args: Any) -> None:
        for own in methods:
            own(*args)

    return cast("Callable[P, None]", methods[0] if len(methods) == 1 else tell)
