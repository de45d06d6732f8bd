"""The interface of a checker of a node. Each method does nothing unless a checker wants it to."""

from __future__ import annotations

from kvtide.core.groups import Key
from kvtide.core.index.calls import Found, LookUp
from kvtide.sim.copies import Job
from kvtide.sim.node.arena import Arena
from kvtide.sim.node.books import Books, Granted, Named
from kvtide.sim.node.connection import Connection


class NodeChecker:
    """Listens, reads the books, and raises `Violation`. The books are changed right after each word."""

    invariant = ""

    def __init__(self, books: Books) -> None:
        self.books = books

    def granted(self, run: Granted) -> None:
        """Somebody may write slots."""

    def committed(self, run: Granted) -> None:
        """Keys were said to be complete."""

    def visible(self, owner: Connection, group: int, keys: list[Key], committed: set[Named]) -> None:
        """The index has announced keys, after a call that committed some."""

    def unkept(self, run: Granted) -> None:
        """What was to be written will not be, or its writer is over."""

    def noticed(self, told: list[tuple[Connection, Named]]) -> None:
        """Some were told that keys have not come. To be called after each `unkept`."""

    def came_up(self, name: Named, slot: int) -> None:
        """Tiers have brought a key up, to this slot."""

    def cleared(self, arena: Arena) -> None:
        """An operator has cleared a namespace."""

    def found(self, owner: Connection, call: LookUp, found: Found) -> None:
        """A look-up was answered."""

    def copy_begins(self, owner: Connection, job: Job) -> None:
        """A rank begins a copy, by the memory of this life."""

    def at_end(self) -> None:
        """All engines rest, and all that were killed are known to be gone."""
