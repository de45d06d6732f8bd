"""Visits: what the policy `forecast` remembers of each request that touched the cache."""

from __future__ import annotations

from array import array

from kvtide.core.groups import Key

NOTHING = -1


class Visits:
    """The last visits, in a ring of flat arrays. A visit is a number that only rises; its row is `visit % size`.

    A visit holds the blocks that it was the last to touch. They are always one unbroken stretch of a prefix: `tip` is
    the last of them, and the others are its parents.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.next = 0
        """The number of the next visit."""
        self.born = array("q", bytes(8 * size))
        """When it was last active."""
        self.tip = array("q", b"\xff" * (8 * size))
        self.cached = array("q", bytes(8 * size))
        """Blocks that it holds."""
        self.gone = array("q", bytes(8 * size))
        """Blocks that it held when they were evicted and that have not come back."""
        self.known = array("q", bytes(8 * size))
        """Blocks of its prefix that it did not add: found, or seen before."""
        self.fresh = array("q", bytes(8 * size))
        """Blocks that it added and that were not seen before."""
        self.kind = bytearray(size)
        self.turn = bytearray(size)
        """How many requests of the same conversation came before, or used the same shared beginning; up to 255."""
        self.soon = bytearray(size)
        """Whether the request before it was not long ago."""
        self.running = bytearray(size)
        """Whether its request may still add blocks."""
        self.grew = bytearray(size)
        """Whether it has added blocks."""
        self.queue = bytearray(size)
        """The queue that it waits in (see `Queues`)."""
        self.trace: list[Key | None] = [None] * size
        """Key of the first of its evicted blocks, by which it is recognised when it comes back."""

    def open(self, now: int, kind: int, turn: int) -> int:
        """Begin a visit without blocks. Its row must not hold any (see `Forecast`)."""
        visit = self.next
        self.next = visit + 1
        row = visit % self.size
        self.born[row] = now
        self.tip[row] = NOTHING
        self.cached[row] = self.gone[row] = self.known[row] = self.fresh[row] = 0
        self.kind[row] = kind
        self.turn[row] = min(turn, 255)
        self.running[row] = self.grew[row] = self.soon[row] = 0
        self.trace[row] = None
        return visit
