"""What was to be reached, beside what was measured: the last lines that a benchmark prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """One number, and what it has to be."""

    what: str
    found: float
    bound: float
    is_least: bool = False
    """More is better."""

    @property
    def is_reached(self) -> bool:
        return self.found >= self.bound if self.is_least else self.found <= self.bound

    def as_json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        return {**self._asdict(), "is_reached": self.is_reached}

    def __str__(self) -> str:
        kind = "at least" if self.is_least else "at most"
        reached = "reached" if self.is_reached else "MISSED"
        return f"{self.what}: {self.found:.3f}, goal {kind} {self.bound:g}: {reached}"


def at_most(what: str, found: float, bound: float) -> Goal:
    return Goal(what, found, bound)


def at_least(what: str, found: float, bound: float) -> Goal:
    return Goal(what, found, bound, is_least=True)


def goal_lines(goals: Iterable[Goal], *, small: bool = False) -> list[str]:
    """Return a line for each goal, below a heading; nothing if there are none.

    `small`: of a run that only shows that it works.
    """
    lines = [f"  {goal}" for goal in goals]
    heading = "goals (with --small the numbers mean nothing):" if small else "goals:"
    return [heading, *lines] if lines else []
