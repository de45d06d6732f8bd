"""Who writes what, where several ranks hold the same bytes and the host keeps them once (F27).

The ranks of such a part map the same host slots. Of each store every rank copies some of the blocks, and of the blocks
below the host every rank keeps some: together all of them, each once. What is loaded, each rank loads for itself.

A rank that has nothing to do for a transfer says at once that it is done. So the ledger need not know of shares: what
every rank has reported is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtide.core.messages import Copy, Name


@dataclass(frozen=True, slots=True)
class Share:
    """What is left to one rank: the share number `index` of `count`.

    Shares are whole blocks, not pieces of blocks. Ranks need not round alike, and a number that is half of one rank and
    half of another, or values of one and their scale of another, would be none that anybody has computed.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse what nobody could have meant."""
        assert 0 <= self.index < self.count

    def of_store(self, copy: Copy) -> Copy:
        """Return what this rank stores: neighbours, so that they are copied in one piece where they can be."""
        if self.count == 1:
            return copy
        index = (self.index + copy.id) % self.count  # or small transfers would all be left to the same rank
        pairs = len(copy.slots)
        part = slice(pairs * index // self.count, pairs * (index + 1) // self.count)
        return replace(copy, blocks=copy.blocks[part], slots=copy.slots[part])

    def of_names(self, names: Sequence[Name]) -> list[int]:
        """Return the positions of the blocks that this rank keeps below the host: the same ones in every process.

        Keys are digests, so the sum of their bytes is as good as any number of them.
        """
        if self.count == 1:
            return list(range(len(names)))
        return [at for at, (_, key) in enumerate(names) if sum(key) % self.count == self.index]


ALL = Share()
"""Nobody else has these bytes."""
