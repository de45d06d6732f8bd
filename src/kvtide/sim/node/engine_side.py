"""What the checkers of a node hear of an engine, and I13, which is about an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtide.core.match import Match
from kvtide.core.messages import Plan
from kvtide.core.reasons import NotLoaded
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.clock import TICK_S
from kvtide.sim.copies import Job
from kvtide.sim.node.link import ROUNDED_S, SILENT_S, SimLink
from kvtide.sim.node.watch import NodeWatch
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

if TYPE_CHECKING:
    from kvtide.sim.rank import Rank

WAITS_S_MAX = 0.1
"""So long a request waits for an answer, and then until the next step."""
WAITS_FOR_MEMORY_S_MAX = 1.0
"""So long after the beginning of a life it waits for ranks that have not mapped anything."""


class AtNodeChecker(Checker):
    """I13: without its node an engine serves as if it had none, and comes back to it by itself."""

    invariant = "I13"

    def __init__(self, world: World, observed: Observed, link: SimLink, node: NodeWatch) -> None:
        super().__init__(world, observed)
        self._link = link
        self._node = node
        self._lost = 0
        """Blocks that were lost before the engine was told of any that others have not written."""
        self._waiting: dict[str, tuple[tuple[int, int, int], int]] = {}
        """Who waits for an answer: in which life and to which question, and since which tick the engine has told of."""

    def copy_begins(self, rank: Rank, job: Job) -> None:
        """Tell those who look at the node."""
        self._node.copy_begins(job.copy.life, job)

    def matched(self, request: SimRequest, match: Match) -> None:
        """Nobody waits for a node that is not there, and nobody for long."""
        life = self._link.life
        if life is None:
            if match.waits or match.tokens:
                raise Violation("I13", f"{request.id} waits for a node that is not there, or is offered what it has")
            return
        if not match.waits or NotLoaded.NODE_LATE not in match.missed:  # or it waits for a tier: the node has answered
            self._waiting.pop(request.id, None)
            return
        if not self._link.has_memory:
            age_s = self._link.engine.patience_s - self._link.greeted_s
            if age_s > WAITS_FOR_MEMORY_S_MAX + TICK_S:
                raise Violation("I13", f"{request.id} waits for memory of the node, {age_s:.3f} s after it came")
            self._waiting.pop(request.id, None)
            return
        question, told = (life, match.device_tokens, match.num_tokens), self._link.engine.told_tick
        asked, since = self._waiting.get(request.id, (None, told))
        if asked != question:
            self._waiting[request.id] = question, told
        elif (told - since) * TICK_S > WAITS_S_MAX:
            raise Violation("I13", f"{request.id} has waited {(told - since) * TICK_S:.3f} s for the node's answer")

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """Who begins again asks again."""
        self._waiting.pop(request.id, None)

    def before_plan(self, idle: bool) -> None:
        """See what is lost so far."""
        if not self._link.unkept:
            self._lost = sum(self.manager.metrics.not_stored.values())

    def at_rest(self) -> None:
        """What others have not written is stored after all, or counted as lost (I14)."""
        lost = sum(self.manager.metrics.not_stored.values()) - self._lost
        if len(self._link.unkept) > lost:
            keys = [key.hex() for _, key in self._link.unkept]
            raise Violation("I14", f"nobody has written {keys}, and the engine that has them does not care")

    def plan_made(self, plan: Plan) -> None:
        """When the node is there, the engine has noticed; and when it hangs, the engine has left it."""
        if self._link.is_silent(SILENT_S + ROUNDED_S):
            raise Violation("I13", "the node has not answered a reservation for 10 s, and the engine still waits")
        if self._link.life is not None and self._link.greeted != self._link.life:
            raise Violation("I13", "the node is there again, and the engine has not noticed")
