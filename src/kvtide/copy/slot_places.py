"""Where the block of a slot is while blocks are packed: in the slot, or as it is, in a row or behind the first slots.

For tiers, which put blocks below as they are kept, and bring them back: those that do not pack, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kvtide.copy.arena import HostArena
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.unpacked import UnpackedRows
from kvtide.errors import CopyError

_PACKED = 0
"""What is tried first of a block that comes back; then it is tried as it is."""


class SlotPlaces:
    """See `tiers.places.Places`. A slot that is read or written by a tier is not used by anybody else meanwhile."""

    forms = 2

    def __init__(self, arena: HostArena, unpacked: UnpackedRows, trial: PackingTrial | None = None) -> None:
        self.unpacked = unpacked
        self._arena, self._trial = arena, trial

    @property
    def more_memory(self) -> memoryview:
        """The rows."""
        return self.unpacked.arena.memory.data.cast("B")

    def held(self, slots: Sequence[int]) -> list[memoryview | None]:
        """Return the memory that has the block of each slot."""
        try:
            rows = self.unpacked.rows_of(np.array(slots)).tolist()
        except CopyError as error:
            self.unpacked.say(error)
            return [None] * len(slots)
        return [
            self._packed(slot) if row < 0 and not self._is_plain(slot) else self._whole(slot, row)
            for slot, row in zip(slots, rows, strict=True)
        ]

    def offered(self, slots: Sequence[int], form: int) -> list[memoryview | None]:
        """Return where blocks can come to, packed or as they are; None where there is no row left for one."""
        self.unpacked.forget(np.array(slots))
        if form == _PACKED:
            return [None if self._is_plain(slot) else self._packed(slot) for slot in slots]
        self.unpacked.place(np.array([slot for slot in slots if not self._is_plain(slot)], dtype=np.int64))
        try:
            rows = self.unpacked.rows_of(np.array(slots)).tolist()
        except CopyError as error:
            self.unpacked.say(error)
            return [None] * len(slots)
        return [self._whole(slot, row) for slot, row in zip(slots, rows, strict=True)]

    def arrived(self, blocks: int, form: int) -> None:
        """Count blocks that come back among the first ones, by which it is decided whether to pack."""
        if self._trial is not None and blocks:
            self._trial.seen(blocks, unfit=0 if form == _PACKED else blocks)

    def missed(self, slots: Iterable[int]) -> None:
        """Take rows back."""
        self.unpacked.forget(np.fromiter(slots, dtype=np.int64))

    def _is_plain(self, slot: int) -> bool:
        """Whether a slot is as large as a block that is not packed."""
        return self._trial is not None and self._trial.is_plain and slot >= self._trial.first

    def _packed(self, slot: int) -> memoryview:
        return memoryview(self._arena.memory[slot])

    def _whole(self, slot: int, row: int) -> memoryview | None:
        """Return the memory of a block that is kept as it is; None where it has no row and needs one."""
        if self._trial is not None and self._is_plain(slot):
            return memoryview(self._trial.plain_memory()[slot - self._trial.first])
        return None if row < 0 else memoryview(self.unpacked.arena.memory[row])
