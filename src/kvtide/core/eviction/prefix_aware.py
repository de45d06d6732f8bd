"""The default: least recently used prefix first, its tail before its head.

A prefix without its beginning is worthless, so a block that others continue is never evicted: only leaves of the
tree of cached prefixes are. Among leaves the least recently used goes first, and of leaves used at the same time
the one furthest from the beginning: so the groups of a hybrid model shrink together and what is left can still be
resumed from.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush

from kvtide.core.eviction.base import NO_PARENT, EvictionPolicy, follow_parents, is_below, no_parents
from kvtide.core.groups import Key

_TICK = 1 << 24
"""Stamps within one tick are lowered by the position in the prefix; 16 million tokens fit between two ticks."""
_SLOT_BITS = 32
_QUEUED = 1 << 32
"""Added to the children of a slot that is in the heap, so that one look tells whether it can become a victim."""


class PrefixAware(EvictionPolicy):
    """A heap of leaves, kept lazily.

    Using a block only writes its stamp. A heap entry whose slot turns out to be used since, pinned or continued is
    dealt with when it comes to the top. Every unpinned leaf has exactly one entry. Evicting a leaf usually makes its
    parent the next victim, and then the heap is not touched at all: a whole conversation costs one entry.
    """

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key]) -> None:
        super().__init__(slots, pins, keys)
        self._parent = no_parents(slots)
        self._children = [0] * slots
        self._stamp = array("q", bytes(8 * slots))
        self._heap: list[int] = []
        self._now = _TICK

    def tick(self) -> None:
        """Let time pass."""
        self._now += _TICK

    def add(self, chain: Sequence[int], parent: int, end_tokens: int, block_tokens: int) -> None:
        """Link the chain: every slot of it has one child, except the last one, which is a leaf."""
        parents, children, stamps = self._parent, self._children, self._stamp
        if parent != NO_PARENT:
            children[parent] += 1
        stamp = self._now - end_tokens
        for slot in chain:
            parents[slot] = parent
            children[slot] = 1
            stamps[slot] = stamp
            stamp -= block_tokens
            parent = slot
        children[parent] = 0
        self._push(parent)

    def adopt(self, child: int, parent: int) -> None:
        """Link a child that came before its parent. An engine that mixes keys up may say that it also comes before."""
        if is_below(self._parent, parent, child):
            return
        self._parent[child] = parent
        self._children[parent] += 1

    def use(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Renew the stamps."""
        stamps = self._stamp
        stamp = self._now - end_tokens
        for slot in chain:
            stamps[slot] = stamp
            stamp -= block_tokens

    def release(self, slots: Sequence[int]) -> None:
        """Queue those that became evictable."""
        children = self._children
        for slot in slots:
            if not children[slot]:
                self._push(slot)

    def evict(self, count: int) -> list[int]:
        """Take leaves, least recently used first."""
        parents, children, stamps = self._parent, self._children, self._stamp
        pins, heap = self.pins, self._heap
        victims: list[int] = []
        while len(victims) < count and (slot := self._pop_leaf()) != NO_PARENT:
            next_stamp = heap[0] >> _SLOT_BITS if heap else self._now
            for _ in range(count - len(victims)):
                victims.append(slot)
                slot = parents[slot]
                if slot == NO_PARENT:
                    break
                left = children[slot] = children[slot] - 1
                if left or pins[slot]:
                    break
                if stamps[slot] > next_stamp:
                    self._push(slot)
                    break
            else:
                self._push(slot)
        return victims

    def ancestors(self, slot: int, count: int) -> list[int] | None:
        """Follow the parents."""
        return follow_parents(self._parent, slot, count)

    def clear(self) -> None:
        """Forget all slots."""
        self._heap.clear()  # the rest is written when slots are added again

    def _push(self, slot: int) -> None:
        self._children[slot] += _QUEUED
        heappush(self._heap, self._stamp[slot] << _SLOT_BITS | slot)

    def _pop_leaf(self) -> int:
        """Return the least recently used unpinned leaf, or NO_PARENT."""
        heap = self._heap
        while heap:
            entry = heappop(heap)
            slot = entry & ((1 << _SLOT_BITS) - 1)
            self._children[slot] -= _QUEUED
            if self.pins[slot] or self._children[slot]:
                continue  # comes back with `release`, or when its last child is evicted
            if self._stamp[slot] != entry >> _SLOT_BITS:
                self._push(slot)
                continue
            return slot
        return NO_PARENT
