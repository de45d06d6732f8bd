"""Whether it is worth it to pack the blocks of this model: the first ones show it (`packing=auto`).

Host memory is shared out before the first block is there. So the first slots, as many as there are rows for blocks that
do not pack, are used alone until it is known; whatever is stored there has a place. Then there are as many slots as the
rest has room for packed blocks, or for plain ones:

    slots     0 … first       first …
    packs     packed, or rows  packed
    does not  rows             plain, in the same memory
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtide.copy.arena import HostArena
from kvtide.copy.unpacked import UnpackedRows

_BLOCKS = 64
"""So many are looked at, or fewer where there is less room."""
_UNFIT_SHARE_MAX = 1 / 50
_RATE_SHARE_MIN = 1 / 4
"""On a CPU: of the rate of plain copies, so that a request does not wait much longer for its blocks."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the first blocks showed."""

    packs: bool
    why: str


class PackingTrial:
    """Decides once. All methods may be called from any thread."""

    def __init__(self, arena: HostArena, unpacked: UnpackedRows, tell: Callable[[str], None] | None = None) -> None:
        """`tell` is told in one line what was decided."""
        self.first = unpacked.arena.slots
        """Slots that are used before it is decided."""
        self.block_bytes = unpacked.arena.slot_bytes
        self.plain_at = self.first * arena.slot_bytes
        """Where slot `first` begins if blocks are not packed."""
        self.decision: Decision | None = None
        self._arena, self._tell = arena, tell
        self._blocks = self._unfit = 0
        self._copying_s = self._packing_s = 0.0
        self._lock = threading.Lock()

    @property
    def is_plain(self) -> bool:
        """Whether it was decided not to pack."""
        return self.decision is not None and not self.decision.packs

    def slots(self, usable_bytes: int | None = None) -> int:
        """Return how many slots there are by now. `usable_bytes`: as if the memory were only as long as this."""
        nbytes = self._arena.memory.nbytes if usable_bytes is None else usable_bytes
        packed = nbytes // self._arena.slot_bytes
        if self.decision is None:
            return min(self.first, packed)
        if self.decision.packs:
            return packed
        return min(self.first, packed) + max(0, nbytes - self.plain_at) // self.block_bytes

    def plain_memory(self) -> npt.NDArray[np.uint8]:
        """Return the slots from `first` on as rows of bytes, if blocks are not packed."""
        flat = self._arena.memory.reshape(-1)[self.plain_at :]
        rows = len(flat) // self.block_bytes
        return flat[: rows * self.block_bytes].reshape(rows, self.block_bytes)

    def seen(self, blocks: int, unfit: int, *, copying_s: float = 0.0, packing_s: float = 0.0) -> None:
        """Take note of stored blocks: so many of them do not pack, and so long it took to copy and to pack them.

        Seconds are of processor time, and 0 where somebody else packs.
        """
        with self._lock:
            if self.decision is not None:
                return
            self._blocks += blocks
            self._unfit += unfit
            self._copying_s += copying_s
            self._packing_s += packing_s
            if self._blocks < min(_BLOCKS, self.first):
                return
            self.decision = self._decide()
        if self._tell is not None:
            self._tell(self.decision.why)

    def _decide(self) -> Decision:
        times = self.block_bytes / (self._arena.slot_bytes + self.block_bytes * self.first / self._arena.slots)
        looked = f"of the first {self._blocks} blocks {self._unfit} do not pack"
        if self._unfit > _UNFIT_SHARE_MAX * self._blocks:
            return Decision(False, f"off: {looked}")
        if self._copying_s < _RATE_SHARE_MIN * self._packing_s:
            share = self._copying_s / self._packing_s
            return Decision(False, f"off: this machine packs at {share:.0%} of the rate at which it copies")
        return Decision(True, f"on: {looked}, and there is room for {times:.2f} times as many in the same host memory")
