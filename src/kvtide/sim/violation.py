"""What a checker raises."""

from __future__ import annotations


class Violation(Exception):
    """Something happened that must never happen."""

    def __init__(self, invariant: str, what: str) -> None:
        self.invariant = invariant
        self.what = what
        super().__init__(f"{invariant}: {what}")
