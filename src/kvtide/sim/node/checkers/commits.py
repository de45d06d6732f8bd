"""I12: a key becomes visible only by a commit of the epoch in which every part of it was written."""

from __future__ import annotations

from kvtide.core.groups import Key
from kvtide.sim.node.books import Granted, Named
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.connection import Connection
from kvtide.sim.violation import Violation


class CommitsChecker(NodeChecker):
    """Looks into the memory of this epoch when a key is said to be complete."""

    invariant = "I12"

    def committed(self, run: Granted) -> None:
        """Every part of every block must be there."""
        for key, slot in zip(run.keys, run.slots, strict=True):
            if not run.arena.holds(slot, self.books.content_of(run.owner, run.group, key)):
                raise Violation(
                    "I12", f"{run.owner} commits slot {slot}, which does not hold {key.hex()} on every rank"
                )

    def visible(self, owner: Connection, group: int, keys: list[Key], committed: set[Named]) -> None:
        """Only what was committed is announced."""
        assert owner.arena is not None
        if not {(owner.arena, group, key) for key in keys} <= committed:
            raise Violation("I12", f"keys {[key.hex() for key in keys]} are visible, and {owner} has committed others")
