"""Where the block of a slot is while blocks are packed: in the slot, or as it is, in a row or behind the first slots.

For tiers, which put blocks below as they are kept, and bring them back: those that do not pack, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvtide.copy.arena import HostArena
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.unpacked import UnpackedRows

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

    def held(self, slot: int) -> memoryview:
        """Return the memory that has the block of a slot."""
        row = self.unpacked.row_of(slot)
        return memoryview(self._arena.memory[slot]) if row is None and not self._is_plain(slot) else self._plain(slot)

    def offered(self, slot: int, form: int) -> memoryview | None:
        """Return where a block can come to, packed or as it is; None where there is no row left for it."""
        self.unpacked.forget([slot])
        if form == _PACKED:
            return None if self._is_plain(slot) else memoryview(self._arena.memory[slot])
        return None if not self._is_plain(slot) and self.unpacked.place([slot]) else self._plain(slot)

    def arrived(self, blocks: int, form: int) -> None:
        """Count blocks that come back among the first ones, by which it is decided whether to pack."""
        if self._trial is not None and blocks:
            self._trial.seen(blocks, unfit=0 if form == _PACKED else blocks)

    def missed(self, slots: Iterable[int]) -> None:
        """Take rows back."""
        self.unpacked.forget(slots)

    def _is_plain(self, slot: int) -> bool:
        """Whether a slot is as large as a block that is not packed."""
        return self._trial is not None and self._trial.is_plain and slot >= self._trial.first

    def _plain(self, slot: int) -> memoryview:
        """Return the memory of a block that is kept as it is."""
        if self._trial is not None and self._is_plain(slot):
            return memoryview(self._trial.plain_memory()[slot - self._trial.first])
        row = self.unpacked.row_of(slot)
        assert row is not None
        return memoryview(self.unpacked.arena.memory[row])
