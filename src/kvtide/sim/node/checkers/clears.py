"""I12: what an operator has cleared is not found again, unless it was committed again."""

from __future__ import annotations

from kvtide.core.index.calls import Found, LookUp
from kvtide.sim.node.arena import Arena
from kvtide.sim.node.books import Books, Granted, Place
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.connection import Connection
from kvtide.sim.violation import Violation


class ClearsChecker(NodeChecker):
    """Knows which slots were committed since the last clear."""

    invariant = "I12"

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._committed: set[Place] = set()

    def committed(self, run: Granted) -> None:
        """Remember it."""
        self._committed.update(run.places())

    def cleared(self, arena: Arena) -> None:
        """Forget all of it."""
        self._committed = {place for place in self._committed if place[0] is not arena}

    def found(self, owner: Connection, call: LookUp, found: Found) -> None:
        """Compare."""
        assert owner.arena is not None
        for slot in [slot for piece in found.pieces for slot in piece.slots]:
            if (owner.arena, slot) not in self._committed:
                raise Violation("I12", f"{owner} is given slot {slot}, which was cleared")
