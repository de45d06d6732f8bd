"""I14: of several engines that computed one key, one writes it; if it does not, the others may."""

from __future__ import annotations

from kvtide.sim.node.books import Books, Granted, Named
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.connection import Connection
from kvtide.sim.violation import Violation


class TakeoverChecker(NodeChecker):
    """Knows who has offered a key in vain, because somebody else was writing it."""

    invariant = "I14"

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._to_be_told: set[tuple[int, Named]] = set()

    def granted(self, run: Granted) -> None:
        """Nobody else may be writing these keys, who could still commit them."""
        for name in run.named():
            writer = self.books.key_writers.get(name)
            if writer is not None and not writer.closed:
                raise Violation("I14", f"{run.owner} may write {name[2].hex()}, and so may {writer}")

    def unkept(self, run: Granted) -> None:
        """Those that relied on it must hear of it, as long as anything is heard of them."""
        for name in () if run.void else run.named():
            for life, owner in self.books.relying.get(name, {}).items():
                if not owner.closed:
                    self._to_be_told.add((life, name))

    def noticed(self, told: list[tuple[Connection, Named]]) -> None:
        """Compare."""
        self._to_be_told.difference_update((owner.life, name) for owner, name in told)
        for life, (_, _, key) in self._to_be_told:
            raise Violation("I14", f"life {life} has {key.hex()}, whose writer is over, and is not told")
