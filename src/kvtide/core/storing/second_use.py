"""Which blocks may be stored: all, or those that were asked for twice (the option `admission`).

Most blocks of chat traffic are used once. Keeping them out saves the copy, and room for what is of use; the price is
that a conversation is stored at its second turn, not at its first. The policy `forecast` weighs that by itself: this is
for the others, and for hosts whose memory bandwidth is scarce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kvtide.core.config import OffloadConfig
from kvtide.core.groups import Key
from kvtide.core.index.index import Index
from kvtide.core.requests import Request

REMEMBERED_POOLS = 4
"""Keys are remembered for at most so many times the pool's size, and for at least half of that."""


class SecondUse:
    """Lets in what was computed before, not long ago. A bounded memory of keys, in two generations."""

    def __init__(self, slots: int) -> None:
        self._generation_max = REMEMBERED_POOLS * slots // 2
        self._young: dict[Key, bool] = {}
        self._old: dict[Key, bool] = {}
        """Whether each key was asked for a second time."""

    def count_storable(self, keys: Sequence[Key], known: Callable[[Key], bool]) -> int:
        """Return how many of the first keys may be stored; take note of all of them.

        `keys` are consecutive blocks of one prefix: behind one that is kept out all others would be of no use.
        `known` says whether one is on the host already. To be asked once for each block of a request.
        """
        young, old = self._young, self._old
        storable = len(keys)
        for index, key in enumerate(keys):
            again = young[key] = key in young or key in old or known(key)
            if not again and index < storable:
                storable = index
        if len(young) > self._generation_max:
            self._old, self._young = young, {}
        return storable

    def may_store(self, key: Key) -> bool:
        """Whether a key was asked for a second time, as far as is remembered."""
        return self._young.get(key, False) or self._old.get(key, False)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class Selection:
    """Decides about the blocks of requests, about each once."""

    def __init__(self, config: OffloadConfig, index: Index) -> None:
        groups = len(config.geometry.groups)
        remembered = (config.slots + config.geometry.device_blocks) // groups
        self._index = index
        self._second_use = [SecondUse(remembered) for _ in range(groups)] if config.admission == "second-use" else None

    def count_storable(self, request: Request, group: int, full: int) -> int:
        """Return how many of the first `full` blocks of a request may be stored.

        Neither the end of a request nor what it computes again after a preemption is a second use.
        """
        if self._second_use is None:
            return full
        decided = request.storing_decided[group]
        if not decided:  # what others computed, and this request does not even have, is not in question
            decided = request.storable[group] = request.considered[group]
        if full > decided:
            keys = request.keys[group][decided:full]
            storable = self._second_use[group].count_storable(keys, partial(self._index.has, group))
            if request.storable[group] == decided:
                request.storable[group] += storable
            request.storing_decided[group] = full
        return min(full, request.storable[group])

    def may_store(self, group: int, key: Key) -> bool:
        """Whether a block may be stored, whoever has asked for it."""
        return self._second_use is None or self._second_use[group].may_store(key)
