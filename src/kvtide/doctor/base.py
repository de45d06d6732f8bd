"""The interface of a check: it finds out one thing, says whether that is well, and if not what to do."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class Health(enum.Enum):
    """How it is."""

    OK = "ok"
    WARNING = "warning"
    """Serving works, and could be better."""
    BAD = "bad"
    """The server would not start, or something that was asked for would not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found."""

    health: Health
    found: str
    advice: str = ""
    """What to do. Empty only where all is well."""


def ok(found: str) -> Finding:
    """Return that it is well."""
    return Finding(Health.OK, found)


def warning(found: str, advice: str) -> Finding:
    """Return that it could be better."""
    return Finding(Health.WARNING, found, advice)


def bad(found: str, advice: str) -> Finding:
    """Return that it has to be fixed."""
    return Finding(Health.BAD, found, advice)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to find out."""

    name: str
    """What programs know it by: it does not change."""
    run: Callable[[], Finding]
    about: str = ""
    """Which one, where there may be several: "tiers[0]"."""
    deadline_s: float = 10.0

    @property
    def title(self) -> str:
        """What people know it by."""
        return f"{self.name} of {self.about}" if self.about else self.name


@dataclass(frozen=True, slots=True)
class Result:
    """A check and what it has found."""

    check: Check
    finding: Finding
