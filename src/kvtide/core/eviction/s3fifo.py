"""S3-FIFO: a small queue on probation, a main queue, and a memory of what failed the probation.

The rules are those of Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

from kvtide.core.eviction.base import EvictionPolicy
from kvtide.core.groups import Key

PROBATION_SHARE = 0.1
"""Share of the slots that blocks on probation may have."""
USES_MAX = 3
"""Uses are counted up to this."""
USES_TO_PASS = 1
"""Uses that end the probation. Two in the paper; one here, because a block of a prefix is used once per request."""

_NOWHERE, _PROBATION, _MAIN, _ASIDE_PROBATION, _ASIDE_MAIN = range(5)


class S3FIFO(EvictionPolicy):
    """Block by block. A use only counts; blocks move when they come to the end of a queue."""

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key] = ()) -> None:
        super().__init__(slots, pins, keys)
        self._probation: deque[int] = deque()
        self._main: deque[int] = deque()
        self._where = bytearray(slots)
        self._uses = bytearray(slots)
        self._failed: OrderedDict[Key, None] = OrderedDict()
        self._probation_max = max(1, int(slots * PROBATION_SHARE))
        self._failed_max = slots - self._probation_max

    def tick(self) -> None:
        """Do nothing: the queues are the order."""

    def add(self, chain: Sequence[int], parent: int, end_tokens: int, block_tokens: int) -> None:
        """Queue the tail first, on probation unless it failed that not long ago."""
        keys, failed = self.keys, self._failed
        for slot in reversed(chain):
            self._uses[slot] = 0
            if keys and keys[slot] in failed:
                del failed[keys[slot]]
                self._enter(slot, _MAIN)
            else:
                self._enter(slot, _PROBATION)

    def adopt(self, child: int, parent: int) -> None:
        """Do nothing: parents do not matter here."""

    def use(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Count."""
        uses = self._uses
        for slot in chain:
            if uses[slot] < USES_MAX:
                uses[slot] += 1

    def renew(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Do nothing: the end of a request is no second use."""

    def release(self, slots: Sequence[int]) -> None:
        """Put slots back that `evict` took out because they were pinned."""
        for slot in reversed(slots):
            if self._where[slot] == _ASIDE_PROBATION:
                self._enter(slot, _PROBATION)
            elif self._where[slot] == _ASIDE_MAIN:
                self._enter(slot, _MAIN)

    def evict(self, count: int) -> list[int]:
        """Take from the probation while it is beyond its share, else from the main queue."""
        victims: list[int] = []
        while len(victims) < count and (self._probation or self._main):
            if len(self._probation) > self._probation_max or not self._main:
                slot = self._end_probation()
            else:
                slot = self._turn_main()
            if slot is not None:
                self._where[slot] = _NOWHERE
                victims.append(slot)
        return victims

    def clear(self) -> None:
        """Forget all slots, and what failed."""
        self._probation.clear()
        self._main.clear()
        self._failed.clear()
        self._where[:] = bytes(self.slots)

    def _enter(self, slot: int, queue: int) -> None:
        self._where[slot] = queue
        (self._main if queue == _MAIN else self._probation).append(slot)

    def _end_probation(self) -> int | None:
        """Take the oldest block on probation: return it if it failed."""
        slot = self._probation.popleft()
        if self.pins[slot]:
            self._where[slot] = _ASIDE_PROBATION
            return None
        if self._uses[slot] >= USES_TO_PASS:
            self._uses[slot] = 0
            self._enter(slot, _MAIN)
            return None
        if self.keys:
            self._failed[self.keys[slot]] = None
            if len(self._failed) > self._failed_max:
                self._failed.popitem(last=False)
        return slot

    def _turn_main(self) -> int | None:
        """Take the oldest block of the main queue: return it unless it was used since its last turn."""
        slot = self._main.popleft()
        if self.pins[slot]:
            self._where[slot] = _ASIDE_MAIN
            return None
        if self._uses[slot]:
            self._uses[slot] -= 1
            self._enter(slot, _MAIN)
            return None
        return slot
