"""Queues of visits for the policy `forecast`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvtide.core.eviction.forecast.visits import NOTHING, Visits


class Queues:
    """Visits by queue, the least recently active first.

    An entry is dropped when it comes to an end of its queue and its visit has gone elsewhere or cannot be evicted: its
    last block is pinned or continued. In the second case the visit is put back when that has changed.
    """

    def __init__(self, count: int, visits: Visits, children: Sequence[int], pins: Sequence[int]) -> None:
        self.nowhere = count
        """Stands for none of the queues."""
        self.changed = bytearray(count)
        """Queues that something was put into since whoever wants to know has reset it."""
        self._queues: list[deque[int]] = [deque() for _ in range(count)]
        self._visits = visits
        self._children = children
        self._pins = pins

    def put(self, visit: int, queue: int) -> None:
        """Let a visit wait in a queue, and in no other, at the place of its age."""
        visits, entries = self._visits, self._queues[queue]
        born, size = visits.born, visits.size
        visits.queue[visit % size] = queue
        self.changed[queue] = 1
        when = born[visit % size]
        if not entries or born[entries[-1] % size] <= when:
            entries.append(visit)
        elif when - born[entries[0] % size] < born[entries[-1] % size] - when:
            place = next((i for i, other in enumerate(entries) if born[other % size] > when), len(entries))
            entries.insert(place, visit)
        else:
            behind = next((i for i, other in enumerate(reversed(entries)) if born[other % size] <= when), len(entries))
            entries.insert(len(entries) - behind, visit)

    def oldest(self, queue: int) -> int:
        """Return the visit that was active least recently and can be evicted, or NOTHING."""
        entries = self._queues[queue]
        while entries:
            if self.can_leave(entries[0], queue):
                return entries[0]
            entries.popleft()
        return NOTHING

    def youngest(self, queue: int) -> int:
        """Return the visit that was active most recently and can be evicted, or NOTHING."""
        entries = self._queues[queue]
        while entries:
            if self.can_leave(entries[-1], queue):
                return entries[-1]
            entries.pop()
        return NOTHING

    def can_leave(self, visit: int, queue: int) -> bool:
        """Whether a visit waits in this queue, and its last block may be evicted."""
        visits = self._visits
        row = visit % visits.size
        if visits.next - visit > visits.size or visits.queue[row] != queue:
            return False
        slot = visits.tip[row]
        if slot == NOTHING or self._children[slot] or self._pins[slot]:
            visits.queue[row] = self.nowhere
            return False
        return True
