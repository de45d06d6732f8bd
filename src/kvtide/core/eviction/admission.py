"""Admission: blocks that were never asked for twice stay out of the host pool.

Most blocks of chat traffic are used once. Keeping them out saves the copy, and the room of what is known to be of use;
the price is that a conversation is stored at its second turn, not at its first. `forecast` weighs that by itself, so
admission is for policies that cannot, and for hosts whose memory bandwidth is scarce.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kvtide.core.groups import Key

REMEMBERED_POOLS = 4
"""Keys are remembered for so many times the pool's size."""


class SecondUse:
    """Admits what was computed before, not long ago. A bounded memory of keys."""

    def __init__(self, slots: int) -> None:
        self._remembered_max = REMEMBERED_POOLS * slots
        self._seen: OrderedDict[Key, None] = OrderedDict()

    def admit(self, keys: Sequence[Key]) -> int:
        """Return how many of the first keys were seen before; remember the others.

        `keys` are consecutive blocks of one prefix: behind one that is kept out all others would be of no use.
        """
        seen = self._seen
        admitted = 0
        while admitted < len(keys) and keys[admitted] in seen:
            del seen[keys[admitted]]
            admitted += 1
        for key in keys[admitted:]:
            seen[key] = None
        while len(seen) > self._remembered_max:
            seen.popitem(last=False)
        return admitted
