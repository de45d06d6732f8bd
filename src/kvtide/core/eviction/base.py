"""The interface of an eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvtide.core.groups import Key

NO_PARENT = -1


def no_parents(slots: int) -> list[int]:
    """Return the parents of so many slots, which have none; nor has NO_PARENT, which is one more."""
    return [NO_PARENT] * (slots + 1)


def follow_parents(parents: Sequence[int], slot: int, count: int) -> list[int] | None:
    """Return the `count` slots that end with `slot`, head first; None when one of them has no parent."""
    slots = [slot] * count
    for position in range(count - 2, -1, -1):
        slots[position] = slot = parents[slot]
    return slots if slot != NO_PARENT else None


def is_below(parents: Sequence[int], slot: int, above: int) -> bool:
    """Whether a slot is another one, or continues it, directly or not."""
    while slot not in (above, NO_PARENT):
        slot = parents[slot]
    return slot == above


class EvictionPolicy(ABC):
    """Orders the cached slots of a host pool. Slots that are being written are none of its business.

    Slots come as *chains*: consecutive blocks of one prefix in one group, head first. `end_tokens` is the length
    of the prefix up to the end of the first block of the chain, `block_tokens` the length of each block. Calls
    between two `tick`s happened at the same time.
    """

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key]) -> None:
        """Both sequences are live. `pins[slot]` is above zero while a slot must not be evicted.

        `keys[slot]` is what it holds, for policies that remember what they gave up.
        """
        self.slots = slots
        self.pins = pins
        self.keys = keys

    def tick(self) -> None:  # noqa: B027 (not all policies care)
        """Let time pass: what is used from now on was used later than what was used before."""

    @abstractmethod
    def add(self, chain: Sequence[int], parent: int, end_tokens: int, block_tokens: int) -> None:
        """Take in a chain that is cached now. `parent` is the slot its head continues, or NO_PARENT."""

    def adopt(self, child: int, parent: int) -> None:  # noqa: B027 (not all policies care)
        """Tell that `parent` is cached now and that `child`, which had no parent, continues it."""

    @abstractmethod
    def use(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Tell that a cached chain was used."""

    def renew(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Tell that a request ends which had a cached chain: what it found there and what it has added itself.

        This is no proof that a block is of use to a second request, as `use` is.
        """
        self.use(chain, end_tokens, block_tokens)

    @abstractmethod
    def release(self, slots: Sequence[int]) -> None:
        """Tell that the last pin of each of these cached slots was returned."""

    @abstractmethod
    def evict(self, count: int) -> list[int]:
        """Choose up to `count` unpinned slots and forget them. Fewer when there are not enough."""

    def ancestors(self, slot: int, count: int) -> list[int] | None:
        """Return the `count` slots of a prefix that end with `slot`, head first.

        None when the policy does not know all of them: then they have to be looked up one by one.
        """
        return None

    @abstractmethod
    def clear(self) -> None:
        """Forget all slots."""
