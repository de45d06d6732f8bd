"""A bounded place for blocks that do not pack.

Where blocks are packed a host slot is as small as a packed block. A block that does not fit is kept as it is, in a row
of its own, under the number of its slot. There are few rows: of a real model's blocks none needs one (packing.md). One
for a hundred slots, because that leaves 1.30 of the 1.32 times that packing gives; decided in rows and not by what does
not pack, because host memory is shared out before the first block is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np

from kvtide.copy.arena import HostArena
from kvtide.copy.ids import Ids
from kvtide.copy.packing.blocks import whole_tiles_bytes
from kvtide.copy.packing.habit import Habit
from kvtide.errors import ConfigError

SLOTS_PER_ROW = 100


def rows_for(slots: int) -> int:
    """Return how many rows go with so many slots."""
    return max(1, slots // SLOTS_PER_ROW)


def packed_bytes_with_row(block_bytes: int) -> int:
    """Return the bytes of a packed block, with its share of the place for blocks that do not pack."""
    return whole_tiles_bytes([block_bytes]) + -(-block_bytes // SLOTS_PER_ROW)


def no_rows(block_bytes: int, slots: int) -> UnpackedRows:
    """Return no place at all, for slots that others use too: they would not know which row is whose."""
    return UnpackedRows(HostArena(1, block_bytes), slots, rows=0)  # memory has at least one row


class UnpackedRows:
    """Rows of whole blocks, and which slot has which. All methods may be called from any thread.

    Nobody says here when a slot is given up: its row is free when the slot is written to again, or to be fetched.
    """

    def __init__(self, arena: HostArena, slots: int, *, rows: int | None = None) -> None:
        """`arena` has the rows, of which so many are used (all); `slots`: how many slots there are in all."""
        if arena.slots > slots:
            raise ConfigError("rows", arena.slots, f"at most one for each of {slots} slots")
        self.arena = arena
        self._rows = arena.slots if rows is None else rows
        self.usable_rows: Callable[[], int] = lambda: arena.slots
        """How many rows, from the first on, can be used by now. An engine that pins them says so."""
        self.habit = Habit()
        self._row_of = np.full(slots, -1, dtype=np.int64)
        self._free = list(range(self._rows))[::-1]
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Rows that are taken."""
        return self._rows - len(self._free)

    def row_of(self, slot: int) -> int | None:
        """Return the row of a slot, None where the slot itself has its block."""
        row = int(self._row_of[slot])
        return None if row < 0 else row

    def rows_of(self, slots: Ids) -> Ids:
        """Return the row of each slot, -1 where the slot itself has its block."""
        with self._lock:
            return self._row_of[slots]

    def forget(self, slots: Iterable[int]) -> None:
        """Take the rows of slots back: they are about to be written to."""
        with self._lock:
            for slot in slots:
                row = int(self._row_of[slot])
                if row >= 0:
                    self._row_of[slot] = -1
                    self._free.append(row)

    def place(self, slots: Iterable[int]) -> list[int]:
        """Give rows to slots that have none, the first ones first; return those for which there is none."""
        usable_rows = self.usable_rows()
        without: list[int] = []
        with self._lock:
            for slot in slots:
                if self._free and self._free[-1] < usable_rows:
                    self._row_of[slot] = self._free.pop()
                else:
                    without.append(slot)
        return without
