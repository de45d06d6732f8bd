"""Virtual time: ticks, and what is to happen at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TICKS_PER_STEP = 4
TICK_S = 0.001
"""What a tick stands for where the core is told of seconds."""
HANG_TICKS_MAX = 60 * TICKS_PER_STEP
"""Nothing that hangs does so for longer."""


class Clock:
    """An agenda. What falls on one tick happens in the order in which it was put down."""

    def __init__(self) -> None:
        self.now = 0
        self._agenda: dict[int, list[tuple[Callable[[Any], None], Any]]] = {}

    def after(self, ticks: int, action: Callable[[Any], None], argument: object) -> None:
        """Let `action(argument)` happen `ticks` from now, at least one."""
        due = self.now + ticks
        entries = self._agenda.get(due)
        if entries is None:
            self._agenda[due] = [(action, argument)]
        else:
            entries.append((action, argument))

    def run(self, ticks: int) -> None:
        """Let time pass."""
        agenda = self._agenda
        for now in range(self.now + 1, self.now + ticks + 1):
            self.now = now
            entries = agenda.pop(now, None)
            if entries is not None:
                for action, argument in entries:
                    action(argument)

    def run_until_next(self, ticks_max: int) -> int:
        """Let time pass until something has happened, at most `ticks_max`; return how many ticks it took."""
        ticks = min(self._agenda, default=self.now + ticks_max) - self.now
        ticks = min(ticks, ticks_max)
        self.now += ticks - 1
        self.run(1)
        return ticks
