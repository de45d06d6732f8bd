"""I3: a key is visible only when every rank has every byte of it."""

from __future__ import annotations

from kvtide.core.messages import Plan
from kvtide.sim.checkers.base import Checker
from kvtide.sim.tokens import group_of, node_of
from kvtide.sim.violation import Violation


class VisibilityChecker(Checker):
    """Looks into the host memory of every rank at the moment a key becomes visible."""

    invariant = "I3"

    def stored(self, contents: list[int]) -> None:
        """Compare the bytes of each key with what its tokens determine."""
        observed = self.observed
        for content in contents:
            flight = observed.flights.get(observed.writing.get(content, 0))
            if flight is None:
                raise Violation("I3", f"{observed.tokens.describe(content)} is visible and nobody has stored it")
            if flight.ranks_left or flight.failed:
                why = "failed" if flight.failed else "is not over on every rank"
                raise Violation("I3", f"a key of store {flight.id} is visible and the store {why}")
            position = flight.stamps.index(content)
            if position in flight.missed:
                raise Violation("I3", f"a key of {flight.kind} {flight.id} is visible and has not come on every rank")
            slot = flight.slots[position]
            for rank in self.ranks:
                if rank.host[slot] != content:
                    describe = observed.tokens.describe
                    raise Violation(
                        "I3",
                        f"a key of store {flight.id} is visible and rank {rank.index} has in slot {slot} "
                        f"{describe(rank.host[slot])} instead of {describe(content)}",
                    )

    def at_rest(self) -> None:
        """And the manager says so of each."""
        observed = self.observed
        for content in observed.visible:
            if not self.manager.is_cached(group_of(content), observed.tokens.keys[node_of(content)]):
                raise Violation("I3", f"{observed.tokens.describe(content)} was announced, and is not cached")

    def plan_made(self, plan: Plan) -> None:
        """As many keys must be visible as the event stream has told."""
        cached = self.observed.gauges.slots_cached
        if cached != len(self.observed.visible):
            raise Violation("I3", f"{cached} slots are visible, and {len(self.observed.visible)} were announced")
