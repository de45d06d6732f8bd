"""Slots in memory that several processes map, behind the rows for blocks that do not pack.

First come the rows, then the table that says which slot has which, and the slots where the next huge page begins.
"""

from __future__ import annotations

from kvtide.copy.arena import HUGE_PAGE_BYTES, HostArena
from kvtide.copy.row_table import FileLock, RowTable, table_bytes
from kvtide.copy.unpacked import UnpackedRows, rows_for
from kvtide.core.share import ALL, Share
from kvtide.errors import ConfigError


def front_bytes(slots: int, row_bytes: int) -> int:
    """Return the bytes in front of so many slots. `row_bytes`: of a whole block, or 0 where blocks are not packed."""
    if not row_bytes:
        return 0
    used = rows_for(slots) * row_bytes + table_bytes(slots, rows_for(slots))
    return -(-used // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES


class SharedArena(HostArena):
    """The slots, as `HostArena` has them, and `unpacked`, their rows: None where blocks are not packed."""

    def __init__(
        self,
        slots: int,
        slot_bytes: int,
        *,
        file: int,
        row_bytes: int = 0,
        file_bytes: int | None = None,
        share: Share = ALL,
    ) -> None:
        front = front_bytes(slots, row_bytes)
        rest = None if file_bytes is None else file_bytes - front
        super().__init__(slots, slot_bytes, file=file, file_begin=front, file_bytes=rest, share=share)
        self.unpacked: UnpackedRows | None = None
        self._lock: FileLock | None = None
        if row_bytes:
            try:
                self._open_rows(file, front, row_bytes)
            except BaseException:
                self.close()
                raise

    def _open_rows(self, file: int, front: int, row_bytes: int) -> None:
        try:
            self._lock = FileLock(file)
        except OSError as error:
            expected = f"memory that can be opened again, in /proc/self/fd ({error})"
            raise ConfigError("host", self.memory.nbytes, expected) from error
        rows = HostArena(rows_for(self.slots), row_bytes, file=file, file_bytes=front)
        table = RowTable(self.slots, rows.slots, rows.behind, self._lock)
        self.unpacked = UnpackedRows(rows, self.slots, table)

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Address and size of all that is mapped."""
        whole = [self] if self.unpacked is None else [self, self.unpacked.arena]
        return [(arena.address, arena.nbytes) for arena in whole]

    def close(self) -> None:
        """See `HostArena`."""
        super().close()
        unpacked, self.unpacked = self.unpacked, None
        if unpacked is not None:
            unpacked.arena.close()
        if self._lock is not None:
            self._lock.close()
