"""Asks tiers to forget everything, until each of them has done it.

Nobody waits for that: the stack reads nothing of before a clear, whatever becomes of it, for the keys are others from
then on. A tier that was not cleared holds what takes room and what engines that are started later may read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kvtide.tiers.base import KeyResult, Tier, Verdict
from kvtide.tiers.log_once import LogOnce

_AGAIN_S = 1.0
"""Between two tries to clear a tier that could not be cleared."""
_log = logging.getLogger(__name__)


class Clears:
    """What is still to be cleared. `places` is what the log calls the tiers."""

    def __init__(self, tiers: Sequence[Tier], places: Sequence[str], clock: Callable[[], float]) -> None:
        self._tiers = tiers
        self._clock = clock
        self._logs = [
            LogOnce(_log, f"clearing {place}", meanwhile=f"it is tried again; by hand: kvtide tier clear {place}")
            for place in places
        ]
        self._uncleared: dict[int, float] = {}
        """Tiers that are not cleared, by position, and when each may be asked to be."""
        self._tickets: dict[int, int] = {}
        """The call by which each of them is being cleared now."""

    @property
    def under_way(self) -> list[int]:
        """Positions of tiers that are being cleared now."""
        return list(self._tickets)

    def begin(self) -> None:
        """Note that all tiers are to be cleared. Calls that were made before this do not count any more."""
        self._uncleared = dict.fromkeys(range(len(self._tiers)), self._clock())
        self._tickets.clear()

    def ask(self, next_ticket: Callable[[], int]) -> None:
        """Ask those tiers whose time it is."""
        for index, due_s in self._uncleared.items():
            if index not in self._tickets and self._clock() >= due_s:
                self._uncleared[index] = self._clock() + _AGAIN_S
                ticket = next_ticket()
                if self._tiers[index].clear(ticket):
                    self._tickets[index] = ticket
                else:
                    self._logs[index].began("it takes no more calls now")

    def hear(self, index: int, ticket: int, results: Sequence[KeyResult]) -> None:
        """Note what became of a call, if it is one of these."""
        if self._tickets.get(index) != ticket:
            return
        del self._tickets[index]
        (result,) = results
        if result.verdict is Verdict.HIT:
            del self._uncleared[index]
            self._logs[index].over()
        else:
            self._logs[index].began(result.why)
