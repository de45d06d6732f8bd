"""The event log: what happened, line by line, the same for the same seed on every Python."""

from __future__ import annotations

from kvtide.sim.clock import Clock


class Log:
    """Lines with the tick at which they were written."""

    def __init__(self, clock: Clock) -> None:
        self.lines: list[str] = []
        self._clock = clock

    def add(self, line: str) -> None:
        """Write one line."""
        self.lines.append(f"{self._clock.now:>6} {line}")
