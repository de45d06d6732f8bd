"""I6 for loads: a request is offered all that it can resume from, and what it is not offered is counted, no more.

What can be resumed from is found by the simulator's own rules among the keys that are visible.
"""

from __future__ import annotations

from kvtide.core.match import Match
from kvtide.core.messages import Outcome
from kvtide.core.reasons import NotLoaded
from kvtide.sim.attention import boundaries_of
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.tokens import stamps
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

_ABSENT = (
    NotLoaded.NOT_CACHED,
    NotLoaded.STILL_STORING,
    NotLoaded.GROUP_CANNOT_RESUME,
    NotLoaded.TIER_LATE,
    NotLoaded.TIER_NOT_ASKED,
)


class OffersChecker(Checker):
    """Looks for the longest prefix on the host, one boundary after the other."""

    invariant = "I6"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._groups = world.told_groups
        self._boundaries = boundaries_of(self._groups)
        self._step = self._boundaries.step
        self._failed: set[SimRequest] = set()
        """Requests that are not offered anything any more, because a load of theirs failed."""
        self._reserved: dict[str, Match] = {}
        self._loading: dict[SimRequest, int] = {}
        """Tokens that each request waits for."""
        self._counted = 0
        self._loaded_tokens = 0

    # ------------------------------------------------------------------ what is offered

    def matched(self, request: SimRequest, match: Match) -> None:
        """Compare an offer with what is there."""
        if self.observed.overdue:
            return  # nothing is offered meanwhile: `overdue.py`
        if request in self._failed:
            expected = {NotLoaded.COPY_FAILED: match.num_tokens - match.device_tokens}
            if match.tokens or match.missed != expected:
                raise Violation("I6", f"a load of {request.id} has failed, and it is offered {match.tokens} tokens")
            return
        limit = (match.num_tokens - 1) // self._step * self._step
        there = self._there(request)
        boundary = self._boundaries.longest(match.device_tokens, limit, there)
        offered = match.tokens + match.missed.get(NotLoaded.BELOW_BREAK_EVEN, 0)
        if match.device_tokens + offered != boundary:
            raise Violation(
                "I6",
                f"{request.id} could resume at {boundary} tokens and is offered {offered} behind {match.device_tokens}",
            )
        self._check_missed(match, there, boundary, limit)
        self._check_break_even(request, match, offered)

    def _there(self, request: SimRequest) -> list[list[bool]]:
        """Say of each block of a request that has a key whether it is visible."""
        observed = self.observed
        there = []
        for index, (group, keys) in enumerate(zip(self._groups, request.keys, strict=True)):
            size = group.block_tokens
            contents = stamps(request.nodes[size : size * len(keys) + 1 : size], observed.epoch, index)
            there.append([content in observed.visible for content in contents])
        return there

    def _check_missed(self, match: Match, there: list[list[bool]], boundary: int, limit: int) -> None:
        """What is not there is counted once, and what is there and not offered as the last token."""
        absent = sum(match.missed.get(why, 0) for why in _ABSENT)
        end = match.num_tokens // self._step * self._step
        last = end - limit if boundary == limit else 0
        for group, blocks in zip(self._groups, there, strict=True):
            first, stop = limit // group.block_tokens, end // group.block_tokens
            if len(blocks) < stop or False in blocks[first:stop]:
                last = 0
        if absent != limit - boundary or match.missed.get(NotLoaded.LAST_TOKEN, 0) != last:
            raise Violation("I6", f"{limit - boundary} tokens are not there and {last} are the last, not so in {match}")

    def _check_break_even(self, request: SimRequest, match: Match, offered: int) -> None:
        least = self.world.min_load_tokens
        if least is None:
            # Whether loading pays is learned, from what the engine tells.
            right = self.world.habits.tells_costs or match.tokens == offered
        else:
            right = match.tokens == (offered if offered >= least else 0)
        if not right:
            raise Violation("I6", f"{request.id} is offered {match.tokens} of {offered} tokens that are there")

    # ------------------------------------------------------------------ what is counted

    def reserved(self, match: Match) -> None:
        """What was found is kept; what was not found is counted if the request is admitted."""
        self._reserved[match.request_id] = match

    def given_up(self, request_id: str) -> None:
        """Nothing is kept."""
        self._reserved.pop(request_id, None)

    def admitted(self, request: SimRequest, loading: bool, accepted: int) -> None:
        """Compare what is counted with what was found."""
        match = self._reserved.pop(request.id, None)
        expected = 0 if match is None else sum(match.missed.values()) + match.tokens - accepted
        self._expect(expected, f"{request.id} is admitted")
        if loading:
            self._loading[request] = accepted

    def arrived(self, request: SimRequest, succeeded: bool) -> None:
        """A load is certain, or came to nothing."""
        self._over(request, succeeded)

    def reported(self, outcome: Outcome) -> None:
        """Loads have ended."""
        lost = 0
        for request_id in outcome.loaded:
            self._over(self.observed.requests[request_id], True, count=False)
        for request_id in outcome.failed:
            lost += self._over(self.observed.requests[request_id], False, count=False)
        self._expect(lost, "a report")

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """Nobody waits any more."""
        self._reserved.pop(request.id, None)
        self._loading.pop(request, None)

    def after_reset(self, below: bool) -> None:
        """Nothing is kept."""
        self._reserved.clear()

    def _over(self, request: SimRequest, succeeded: bool, *, count: bool = True) -> int:
        tokens = self._loading.pop(request)
        if succeeded:
            self._loaded_tokens += tokens
        else:
            self._failed.add(request)
        lost = 0 if succeeded else tokens
        if count:
            self._expect(lost, f"the load of {request.id}")
        return lost

    def _expect(self, lost: int, when: str) -> None:
        metrics = self.manager.metrics
        counted = sum(metrics.not_loaded.values())
        if counted - self._counted != lost or metrics.loaded_tokens != self._loaded_tokens:
            raise Violation(
                "I6",
                f"{lost} tokens are not loaded by {when}, and {counted - self._counted} are counted; "
                f"{self._loaded_tokens} were loaded so far, and {metrics.loaded_tokens} are counted",
            )
        self._counted = counted
