"""The event log: what happened, line by line, the same for the same seed on every Python."""

from __future__ import annotations

from kvtide.sim.clock import Clock


class Log:
    """Lines with the tick at which they were written."""

    def __init__(self, clock: Clock) -> None:
        self.lines: list[str] = []
        self.clock = clock

    def add(self, line: str) -> None:
        """Write one line."""
        self.lines.append(f"{self.clock.now:>6} {line}")


class LogOf(Log):
    """A log in which one of several writes under its name."""

    def __init__(self, log: Log, name: str) -> None:
        super().__init__(log.clock)
        self.lines = log.lines
        self._name = name

    def add(self, line: str) -> None:
        """Write one line."""
        super().add(f"{self._name}: {line}")
