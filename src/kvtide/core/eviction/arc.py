"""ARC: two recency lists, for blocks used once and more often, and a border that learns from regrets.

The rules are those of Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache" (FAST 2003). One thing
is different: here room is made before it is known what will take it, so a regret moves the border after the
eviction that it could have prevented, not before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kvtide.core.eviction.base import EvictionPolicy
from kvtide.core.groups import Key


class ARC(EvictionPolicy):
    """Block by block, like LRU. Needs `keys` to recognise what it gave up; without them it never regrets."""

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key] = ()) -> None:
        super().__init__(slots, pins, keys)
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._aside: dict[int, OrderedDict[int, None]] = {}
        """Slots that were pinned when their turn came, with the list they come back to."""
        self._once_gone: OrderedDict[Key, None] = OrderedDict()
        self._often_gone: OrderedDict[Key, None] = OrderedDict()
        self._once_target = 0.0
        """How many slots blocks that were used once may have: the border."""

    def tick(self) -> None:
        """Do nothing: the lists are the order."""

    def add(self, chain: Sequence[int], parent: int, end_tokens: int, block_tokens: int) -> None:
        """Append the tail first. What comes back soon after it was given up counts as used often."""
        keys = self.keys
        for slot in reversed(chain):
            regretted = bool(keys) and self._regret(keys[slot])
            (self._often if regretted else self._once)[slot] = None

    def adopt(self, child: int, parent: int) -> None:
        """Do nothing: parents do not matter here."""

    def use(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Move the chain to the young end of the list of blocks used often."""
        once, often, aside = self._once, self._often, self._aside
        for slot in reversed(chain):
            if slot in once:
                del once[slot]
                often[slot] = None
            elif slot in often:
                often.move_to_end(slot)
            else:
                aside[slot] = often

    def renew(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Move the chain to the young end of the list that each block is in."""
        once, often = self._once, self._often
        for slot in reversed(chain):
            if slot in once:
                once.move_to_end(slot)
            elif slot in often:
                often.move_to_end(slot)

    def release(self, slots: Sequence[int]) -> None:
        """Put slots back that `evict` took out because they were pinned."""
        for slot in reversed(slots):
            home = self._aside.pop(slot, None)
            if home is not None:
                home[slot] = None

    def evict(self, count: int) -> list[int]:
        """Take the oldest of the list that is beyond its share."""
        victims: list[int] = []
        while len(victims) < count and (self._once or self._often):
            from_once = len(self._once) > self._once_target or not self._often
            home, gone = (self._once, self._once_gone) if from_once else (self._often, self._often_gone)
            slot, _ = home.popitem(last=False)
            if self.pins[slot]:
                self._aside[slot] = home
                continue
            victims.append(slot)
            if self.keys:
                gone[self.keys[slot]] = None
        self._forget_old_regrets()
        return victims

    def clear(self) -> None:
        """Forget all slots, and what was given up."""
        for known in (self._once, self._often, self._aside, self._once_gone, self._often_gone):
            known.clear()

    def _regret(self, key: Key) -> bool:
        """Move the border if `key` was given up not long ago; return whether it was."""
        once, often = len(self._once_gone), len(self._often_gone)
        if key in self._once_gone:
            del self._once_gone[key]
            self._once_target = min(float(self.slots), self._once_target + max(1.0, often / once))
            return True
        if key in self._often_gone:
            del self._often_gone[key]
            self._once_target = max(0.0, self._once_target - max(1.0, once / often))
            return True
        return False

    def _forget_old_regrets(self) -> None:
        """Remember as much as there are slots: as many blocks used once, cached or gone, and as many in all gone."""
        once_gone, often_gone = self._once_gone, self._often_gone
        while len(self._once) + len(once_gone) > self.slots:
            once_gone.popitem(last=False)
        while len(once_gone) + len(often_gone) > self.slots:
            often_gone.popitem(last=False)
