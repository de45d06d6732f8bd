"""Asks tiers to forget everything, until each of them has done it.

Nobody waits for that: the stack reads nothing of before a clear, whatever becomes of it, for the keys are others from
then on. A tier that was not cleared holds what takes room and what engines that are started later may read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtide.tiers.base import KeyResult, Tier, Verdict
from kvtide.tiers.log_once import LogOnce

_PAUSE_S, _PAUSE_MAX_S = 1.0, 30.0
"""Between two tries to clear a tier. After each that failed it is twice as long, because a try also removes
what was stored since the last one, or a part of it."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Uncleared:
    """A tier that is not cleared."""

    due_s: float
    """When it may be asked to be."""
    pause_s: float = _PAUSE_S
    """How long it is left alone if that fails."""

    def failed(self, now_s: float) -> None:
        """Note that it was tried."""
        self.due_s = now_s + self.pause_s
        self.pause_s = min(_PAUSE_MAX_S, 2 * self.pause_s)


class Clears:
    """What is still to be cleared. `places` is what the log calls the tiers."""

    def __init__(self, tiers: Sequence[Tier], places: Sequence[str], clock: Callable[[], float]) -> None:
        self._tiers = tiers
        self._clock = clock
        self._logs = [
            LogOnce(_log, f"clearing {place}", meanwhile=f"it is tried again; by hand: kvtide tier clear {place}")
            for place in places
        ]
        self._uncleared: dict[int, _Uncleared] = {}
        """By position."""
        self._tickets: dict[int, int] = {}
        """The call by which each of them is being cleared now."""

    @property
    def under_way(self) -> list[int]:
        """Positions of tiers that are being cleared now."""
        return list(self._tickets)

    def begin(self) -> None:
        """Note that all tiers are to be cleared. Calls that were made before this do not count any more."""
        self._uncleared = {index: _Uncleared(self._clock()) for index in range(len(self._tiers))}
        self._tickets.clear()

    def ask(self, next_ticket: Callable[[], int]) -> None:
        """Ask those tiers whose time it is."""
        for index, uncleared in self._uncleared.items():
            if index not in self._tickets and self._clock() >= uncleared.due_s:
                ticket = next_ticket()
                if self._tiers[index].clear(ticket):
                    self._tickets[index] = ticket
                else:
                    uncleared.due_s = self._clock() + _PAUSE_S
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
            self._uncleared[index].failed(self._clock())
            self._logs[index].began(result.why)
