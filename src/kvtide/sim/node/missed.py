"""I6 for loads at a node: what a request is not offered is counted. Whether it is there only the node knows."""

from __future__ import annotations

from kvtide.core.match import Match
from kvtide.sim.attention import boundaries_of
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World


class MissedChecker(Checker):
    """Adds up what each match says, also of a node that is away, late, or has forgotten what it was asked."""

    invariant = "I6"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._step = boundaries_of(world.told_groups).step

    def matched(self, request: SimRequest, match: Match) -> None:
        """Compare it with what the request could load if all were there."""
        limit = (match.num_tokens - 1) // self._step * self._step
        silent = limit - match.device_tokens - match.tokens - sum(match.missed.values())
        if silent > 0 and not match.waits:
            raise Violation("I6", f"{request.id} is not offered {silent} tokens, and nothing says why: {match}")
