"""I15: nobody gets a block of another namespace."""

from __future__ import annotations

from kvtide.core.index.calls import Found, LookUp
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.connection import Connection
from kvtide.sim.tokens import epoch_of
from kvtide.sim.violation import Violation


class NamespacesChecker(NodeChecker):
    """Compares what was found with what the engine means by its keys."""

    invariant = "I15"

    def found(self, owner: Connection, call: LookUp, found: Found) -> None:
        """Look at the bytes of every slot, in every part."""
        assert owner.arena is not None
        for group, first, slots in found.pieces:
            for slot, key in zip(slots, call.keys[group][first:], strict=False):
                meant = self.books.content_of(owner, group, key)
                for part in owner.arena.parts:
                    if part[slot] != meant:
                        foreign = part[slot] > 0 and epoch_of(part[slot]) != owner.weights
                        rule = "I15" if foreign else "I12"
                        raise Violation(
                            rule, f"{owner} is given slot {slot} for {key.hex()}, which holds another block"
                        )
