"""A bounded place for blocks that do not pack.

Where blocks are packed a host slot is as small as a packed block. A block that does not fit is kept as it is, in a row
of its own, under the number of its slot. There are few rows: of a real model's blocks none needs one (packing.md). One
for a hundred slots, because that leaves 1.30 of the 1.32 times that packing gives; decided in rows and not by what does
not pack, because host memory is shared out before the first block is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kvtide.copy.arena import HostArena
from kvtide.copy.ids import Ids
from kvtide.copy.packing.blocks import whole_tiles_bytes
from kvtide.copy.packing.habit import Habit
from kvtide.copy.row_table import RowTable
from kvtide.errors import ConfigError, CopyError

_LOG = logging.getLogger(__name__)
SLOTS_PER_ROW = 100


def rows_for(slots: int) -> int:
    """Return how many rows go with so many slots."""
    return max(1, slots // SLOTS_PER_ROW)


def packed_bytes_with_row(block_bytes: int) -> int:
    """Return the bytes of a packed block, with its share of the place for blocks that do not pack."""
    return whole_tiles_bytes([block_bytes]) + -(-block_bytes // SLOTS_PER_ROW)


class UnpackedRows:
    """Rows of whole blocks, and which slot has which. All methods may be called from any thread.

    Nobody says here when a slot is given up: its row is free when the slot is written to again, or to be fetched.
    """

    def __init__(self, arena: HostArena, slots: int, table: RowTable | None = None) -> None:
        """`arena` has the rows; `slots`: how many slots there are in all; `table`, if others have one, too."""
        if arena.slots > slots:
            raise ConfigError("rows", arena.slots, f"at most one for each of {slots} slots")
        self.arena = arena
        self.usable_rows: Callable[[], int] = lambda: arena.slots
        """How many rows, from the first on, can be used by now. An engine that pins them says so."""
        self.habit = Habit()
        self._table = RowTable(slots, arena.slots) if table is None else table
        self._said = ""

    @property
    def used(self) -> int:
        """Rows that are taken."""
        return self._table.used

    def rows_of(self, slots: Ids) -> Ids:
        """Return the row of each slot, -1 where the slot itself has its block."""
        return self._table.rows_of(slots)

    def forget(self, slots: Ids) -> None:
        """Take the rows of slots back: they are about to be written to."""
        self._table.forget(slots)

    def place(self, slots: Ids) -> list[int]:
        """Give rows to slots that have none, the first ones first; return those for which there is none."""
        try:
            placed = self._table.take(slots, self.usable_rows())
        except CopyError as error:
            self.say(error)
            placed = 0
        without: list[int] = slots[placed:].tolist()
        return without

    def say(self, error: CopyError) -> None:
        """Tell the log why blocks are not kept, or not found; not again as long as it is the same."""
        if str(error) != self._said:
            self._said = str(error)
            _LOG.warning("blocks that do not pack are not kept or brought back: %s", error)
