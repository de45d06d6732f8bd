"""I12: what an operator has cleared is not found again, in memory or below, unless it was committed again."""

from __future__ import annotations

from kvtide.core.index.calls import Found, LookUp
from kvtide.sim.node.arena import Arena
from kvtide.sim.node.books import Books, Granted, Named, Place
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.connection import Connection
from kvtide.sim.violation import Violation


class ClearsChecker(NodeChecker):
    """Knows which slots, and which keys, were committed since the last clear."""

    invariant = "I12"

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._committed: set[Place] = set()
        self._names: set[Named] = set()
        self._was_cleared: set[Arena] = set()

    def committed(self, run: Granted) -> None:
        """Remember it."""
        self._committed.update(run.places())
        self._names.update(run.named())

    def came_up(self, name: Named, slot: int) -> None:
        """What is below was cleared, too: only what was committed since can come from there."""
        arena, group, key = name
        if arena in self._was_cleared and name not in self._names:
            raise Violation("I12", f"{key.hex()} of group {group} came up to slot {slot}, and was cleared")
        self._committed.add((arena, slot))

    def cleared(self, arena: Arena) -> None:
        """Forget all of it."""
        self._committed = {place for place in self._committed if place[0] is not arena}
        self._names = {name for name in self._names if name[0] is not arena}
        self._was_cleared.add(arena)

    def found(self, owner: Connection, call: LookUp, found: Found) -> None:
        """Compare."""
        assert owner.arena is not None
        for slot in [slot for piece in found.pieces for slot in piece.slots]:
            if (owner.arena, slot) not in self._committed:
                raise Violation("I12", f"{owner} is given slot {slot}, which was cleared")
