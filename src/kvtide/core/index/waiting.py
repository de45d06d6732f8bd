"""Look-ups of a shared index that wait for what is below host memory.

What they have found so far is kept here, not by the engine: it knows of no slot before its look-up is over.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.core.index.local import LocalIndex
from kvtide.core.match import Lease, Match
from kvtide.core.requests import Request

UNASKED_S = 30.0
"""So long what was found is kept for an engine that does not ask: one that stands still must not keep it for ever. One
that is well asks in every step.
"""
UNASKED_MAX = 512
"""So many one owner may have: twice as many as can search at a time. What was found for more is kept for nobody."""
STEP_S_MAX = 1.0
"""The most that counts at once: nobody was heard while the node stood still."""

LookUpName = tuple[int, int]
"""The owner, and the number that it has given to a look-up."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A look-up that is not over, or of which nobody has heard yet that it is."""

    request: Request
    found: Match
    lease: Lease
    unasked_s: float = 0.0
    """Since it was over."""


class WaitingLookUps:
    """All of one namespace. As many as may search at a time, and those that are over and were not asked for since."""

    def __init__(self, index: LocalIndex) -> None:
        self._index = index
        self._waiting: dict[LookUpName, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, name: LookUpName, request: Request, found: Match) -> bool:
        """Let a look-up wait, if there is something to wait for; otherwise return False."""
        if found.waits:
            self.drop(name)  # nobody gives one number twice, unless by mistake
            self._make_room(name[0])
            request.reservation = found
            self._waiting[name] = Waiting(request, found, self._index.lease(found))
        self._index.wait(request, found)
        return found.waits

    def knows(self, name: LookUpName) -> bool:
        """Whether there is such a look-up."""
        return name in self._waiting

    def result(self, name: LookUpName) -> Match | None:
        """Return what a look-up has found; None as long as it waits. Leased until `drop`, and no longer."""
        if not self._is_over(name):
            return None
        waiting = self._waiting[name]
        found = waiting.found
        return self._index.look_up(waiting.request, found.device_tokens, found.num_tokens, lambda _: True)

    def passed(self, seconds: float) -> None:
        """So much time has passed: forget what is over, and nobody asks for."""
        for name, waiting in list(self._waiting.items()):
            if self._is_over(name):
                waiting.unasked_s += min(seconds, STEP_S_MAX)
                if waiting.unasked_s >= UNASKED_S:
                    self.drop(name)

    def drop(self, name: LookUpName) -> None:
        """Forget a look-up, if there is one, and let go of what was kept for it."""
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            self._index.drop(waiting.request)
            self._index.release(waiting.lease)

    def drop_all_of(self, owner: int) -> None:
        """Forget all look-ups of one owner."""
        for name in [name for name in self._waiting if name[0] == owner]:
            self.drop(name)

    def drop_all(self) -> None:
        """Forget all look-ups: what they have found so far is not to be found any more."""
        for name in list(self._waiting):
            self.drop(name)

    def _make_room(self, owner: int) -> None:
        """Forget the oldest one of an owner that is over, if it has too many."""
        if len(self._waiting) < UNASKED_MAX:
            return
        own = [name for name in self._waiting if name[0] == owner]
        if len(own) >= UNASKED_MAX and (over := next(filter(self._is_over, own), None)) is not None:
            self.drop(over)

    def _is_over(self, name: LookUpName) -> bool:
        search = self._waiting[name].request.search
        assert search is not None
        return search.over
