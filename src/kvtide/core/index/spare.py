"""Slots that a shared index keeps free: whoever stores, and all who wait behind, need not wait for evictions.

Only once something had to leave: a pool in which everything fits stays full. And only while nobody asks for anything.
"""

from __future__ import annotations

from kvtide.core.index.local import LocalIndex

SPARE_SLOTS_MAX = 1024
SPARE_SHARE = 128
"""One of so many slots is kept free."""
EVICTED_AT_ONCE = 64


class SpareSlots:
    """Of one index: `slots` of them, or as many as usual."""

    def __init__(self, index: LocalIndex, slots: int | None) -> None:
        self._index = index
        self.slots = min(SPARE_SLOTS_MAX, index.host.slots_max // SPARE_SHARE) if slots is None else slots

    def make(self) -> bool:
        """Evict a few blocks, if slots are lacking. Returns whether there is more to do.

        With tiers it is they who keep slots free: what leaves may have to sink first.
        """
        return not self._index.below.has_tiers and self._index.host.evict_ahead(self.slots, EVICTED_AT_ONCE)
