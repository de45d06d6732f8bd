"""Admission: blocks that were never asked for twice stay out of the host pool.

Most blocks of chat traffic are used once. Keeping them out saves the copy, and the room of what is known to be of use;
the price is that a conversation is stored at its second turn, not at its first. `forecast` weighs that by itself, so
admission is for policies that cannot, and for hosts whose memory bandwidth is scarce.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from kvtide.core.groups import Key

REMEMBERED_POOLS = 4
"""Keys are remembered for at most so many times the pool's size, and for at least half of that."""


class SecondUse:
    """Admits what was computed before, not long ago. A bounded memory of keys, in two generations."""

    def __init__(self, slots: int) -> None:
        self._generation_max = REMEMBERED_POOLS * slots // 2
        self._young: dict[Key, bool] = {}
        self._old: dict[Key, bool] = {}
        """Whether each key was asked for a second time."""

    def admit(self, keys: Sequence[Key], known: Container[Key] = ()) -> int:
        """Return how many of the first keys may be stored; take note of all of them.

        `keys` are consecutive blocks of one prefix: behind one that is kept out all others would be of no use.
        `known` are on the host already. To be asked once for each block of a request.
        """
        young, old = self._young, self._old
        admitted = len(keys)
        for index, key in enumerate(keys):
            again = young[key] = key in young or key in old or key in known
            if not again and index < admitted:
                admitted = index
        if len(young) > self._generation_max:
            self._old, self._young = young, {}
        return admitted

    def admits(self, key: Key) -> bool:
        """Whether a key was asked for a second time, as far as is remembered."""
        return self._young.get(key, False) or self._old.get(key, False)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
