"""What a store that packs says of its blocks, on the host: which of them do not fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtide.copy.cuda.gpu import Gpu
from kvtide.copy.ids import Ids

_PAIRS_MIN = 256
"""Room for as many at least: most transfers are no longer, and pinned memory is slow to get."""


@dataclass(frozen=True, slots=True, eq=False)
class Flags:
    """A number for each pair of a transfer, in pinned memory: not 0 where the block does not fit."""

    memory: npt.NDArray[np.int32]
    """May be longer than the transfer."""
    blocks: Ids
    slots: Ids

    @classmethod
    def of(cls, gpu: Gpu, blocks: Ids, slots: Ids, spare: Flags | None) -> Flags:
        """Return flags for these pairs, in the memory of spare ones if that is long enough."""
        if spare is not None and len(spare.memory) >= len(blocks):
            return cls(spare.memory, blocks, slots)
        memory = gpu.allocate_pinned(4 * (_PAIRS_MIN + len(blocks))).view(np.int32)
        return cls(memory, blocks, slots)

    def part(self, pairs: slice) -> npt.NDArray[np.int32]:
        """Return the flags of some pairs."""
        return self.memory[: len(self.blocks)][pairs]

    def unfit(self) -> tuple[Ids, Ids]:
        """Return blocks and slots of the pairs that do not fit, once the transfer has ended."""
        at = np.flatnonzero(self.memory[: len(self.blocks)])
        return self.blocks[at], self.slots[at]
