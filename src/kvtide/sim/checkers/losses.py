"""The manager's counters of blocks that were not stored, read call by call."""

from __future__ import annotations

from kvtide.core.reasons import NotStored
from kvtide.sim.checkers.base import Checker
from kvtide.sim.violation import Violation


class Losses:
    """What was counted so far, and what of it is new since somebody last read it."""

    def __init__(self, checker: Checker) -> None:
        self._checker = checker
        """Knows the manager, but not before there is one."""
        self._read = 0
        self._read_of: dict[NotStored, int] = {}

    def total(self) -> int:
        """Return how many blocks are counted as lost."""
        return sum(self._checker.manager.metrics.not_stored.values())

    def total_of(self, why: NotStored) -> int:
        """Return how many blocks are counted as lost for one reason."""
        return self._checker.manager.metrics.not_stored[why]

    def new(self) -> int:
        """Return how many are new."""
        return self.total() - self._read

    def new_of(self, why: NotStored) -> int:
        """Return how many are new, for one reason."""
        return self.total_of(why) - self._read_of.get(why, 0)

    def read(self) -> None:
        """From here on, nothing that was counted is new."""
        total = self.total()
        if total != self._read:
            self._read, self._read_of = total, dict(self._checker.manager.metrics.not_stored)

    def expect_none(self, when: str) -> None:
        """Nothing is counted between the calls that may lose something."""
        if self.total() != self._read:
            raise Violation("I6", f"{self.new()} blocks are counted as lost before {when}, where none could be")
