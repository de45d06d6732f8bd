"""I7: one key is written by one transfer at a time, and only if it is not there."""

from __future__ import annotations

from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.violation import Violation


class SingleWriterChecker(Checker):
    """Knows by content, not by block, what is on its way."""

    invariant = "I7"

    def planned(self, flight: Flight) -> None:
        """Look for the same content elsewhere."""
        if not flight.writes_host:
            return
        observed = self.observed
        seen: set[int] = set()
        for content in flight.stamps:
            if content in observed.writing or content in seen:
                other = observed.writing.get(content, flight.id)
                what = observed.tokens.describe(content)
                raise Violation("I7", f"{flight.kind} {flight.id} writes {what}, and so does {other}")
            if content in observed.visible:
                what = observed.tokens.describe(content)
                raise Violation("I7", f"{flight.kind} {flight.id} writes {what}, which is visible already")
            seen.add(content)
