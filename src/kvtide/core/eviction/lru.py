"""Least recently used, block by block. Knows nothing of prefixes: the yardstick for the others."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.eviction.base import EvictionPolicy
from kvtide.core.groups import Key


class LRU(EvictionPolicy):
    """A doubly linked list threaded through two flat lists, oldest slot first.

    Flat lists, because a million linked objects would cost twice the memory and be walked by each full garbage
    collection. The list is a ring closed by a sentinel at index `slots`.
    """

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key] = ()) -> None:
        super().__init__(slots, pins, keys)
        self._next = [0] * (slots + 1)
        self._previous = [0] * (slots + 1)
        self._linked = bytearray(slots)
        self.clear()

    def tick(self) -> None:
        """Do nothing: the list is the order."""

    def add(self, chain: Sequence[int], parent: int, end_tokens: int, block_tokens: int) -> None:
        """Append the tail first, so that of blocks used together the head leaves last."""
        for slot in reversed(chain):
            self._append(slot)

    def adopt(self, child: int, parent: int) -> None:
        """Do nothing: parents do not matter here."""

    def use(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Move the chain to the young end."""
        for slot in reversed(chain):
            if self._linked[slot]:
                self._unlink(slot)
                self._append(slot)

    def release(self, slots: Sequence[int]) -> None:
        """Put slots back that `evict` took out because they were pinned."""
        for slot in reversed(slots):
            if not self._linked[slot]:
                self._append(slot)

    def evict(self, count: int) -> list[int]:
        """Take from the old end. A pinned slot is taken out of the list too, and comes back with `release`."""
        victims: list[int] = []
        while len(victims) < count:
            slot = self._next[self.slots]
            if slot == self.slots:
                break
            self._unlink(slot)
            if not self.pins[slot]:
                victims.append(slot)
        return victims

    def clear(self) -> None:
        """Forget all slots."""
        self._next[self.slots] = self._previous[self.slots] = self.slots
        self._linked[:] = bytes(self.slots)

    def _append(self, slot: int) -> None:
        end, last = self.slots, self._previous[self.slots]
        self._next[last] = slot
        self._previous[slot] = last
        self._next[slot] = end
        self._previous[end] = slot
        self._linked[slot] = 1

    def _unlink(self, slot: int) -> None:
        before, after = self._previous[slot], self._next[slot]
        self._next[before] = after
        self._previous[after] = before
        self._linked[slot] = 0
