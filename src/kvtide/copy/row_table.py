"""Which slot has which row: in memory of this process, or in memory that others have, too."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from kvtide.copy.ids import Ids
from kvtide.errors import CopyError

_NONE = 0
_NUMBER_BYTES = 4
_ROWS_AT_A_TIME = 4096
_LOCK_S, _LOCK_AGAIN_S = 0.05, 0.0005
"""Who has the lock gives it back soon. One that was stopped just then is not waited for longer."""
_NO_WAIT_S = 1.0
"""So long after a wait in vain nobody waits again: a node would do nothing else."""


def table_bytes(slots: int, rows: int) -> int:
    """Return the bytes of a table."""
    return _NUMBER_BYTES * (slots + rows)


class RowTable:
    """Rows of slots. All methods may be called from any thread, and from any process that has the memory.

    A slot says its row, and a row its slot. A row is taken only as long as both agree, so a slot gives its row up by
    itself, and what a process has left half done when it was killed is a free row.

    Only `take` needs the lock: of a slot nobody asks but those who may read or write it.
    """

    def __init__(
        self,
        slots: int,
        rows: int,
        memory: npt.NDArray[np.uint8] | None = None,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """`memory`, zero at first, and the lock of all who have it; None: nobody else has it."""
        if memory is None:
            memory = np.zeros(table_bytes(slots, rows), dtype=np.uint8)
        numbers = memory[: table_bytes(slots, rows)].view(np.int32)
        self._row_of, self._slot_of = numbers[:slots], numbers[slots:]  # counted from 1 on
        self._lock = threading.Lock() if lock is None else lock

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._slot_of)

    @property
    def used(self) -> int:
        """Rows that are taken."""
        return int(self._taken(0, self.rows).sum())

    def rows_of(self, slots: Ids) -> Ids:
        """Return the row of each slot, -1 for those without one. Raises CopyError if there is no such row."""
        rows: Ids = self._row_of[slots].astype(np.int64) - 1
        if len(rows) and rows.max() >= self.rows:
            raise CopyError(f"row {rows.max()} does not exist: somebody has written over the memory that is shared")
        return rows

    def forget(self, slots: Ids) -> None:
        """Take the rows of slots back."""
        self._row_of[slots] = _NONE

    def take(self, slots: Ids, usable_rows: int) -> int:
        """Give each slot a row, one after the other, of the first so many; return how many slots have one now."""
        with self._lock:
            rows = self._free(len(slots), min(usable_rows, self.rows))
            slots = slots[: len(rows)]
            self._slot_of[rows] = slots + 1
            self._row_of[slots] = rows + 1
        return len(rows)

    def _free(self, count: int, usable_rows: int) -> Ids:
        """Return the first free rows, at most so many. Mostly they are among the first ones of all."""
        found: list[Ids] = []
        for first in range(0, usable_rows, _ROWS_AT_A_TIME):
            last = min(first + _ROWS_AT_A_TIME, usable_rows)
            found.append(first + np.flatnonzero(~self._taken(first, last)))
            if sum(map(len, found)) >= count:
                break
        return np.concatenate(found)[:count] if found else np.empty(0, dtype=np.int64)

    def _taken(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Return which of some rows are taken."""
        slots = np.clip(self._slot_of[first:last], _NONE, len(self._row_of))  # whatever somebody may have written there
        taken: npt.NDArray[np.bool_] = (slots != _NONE) & (self._row_of[slots - 1] == np.arange(first + 1, last + 1))
        return taken


class FileLock:
    """A lock of all threads and processes that have the same file. It is given back when its process ends.

    A child of that process has no part in it.
    """

    def __init__(self, file: int) -> None:
        """`file` may be closed afterwards. Raises OSError."""
        # Opened once more: a descriptor that was sent to another process is locked for both of them.
        self._file = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        self._threads = threading.Lock()
        self._no_wait_before_s = float("-inf")
        _LOCKS.add(self)

    def __enter__(self) -> None:
        """Have it. Raises CopyError if somebody else keeps it for too long, or if it cannot be had."""
        if not self._threads.acquire(timeout=_LOCK_S):
            raise CopyError(_KEPT)
        try:
            self._wait()
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._threads.release()

    def _wait(self) -> None:
        begin_s = time.monotonic()
        waits = begin_s >= self._no_wait_before_s
        while not self._is_locked():
            if waits and time.monotonic() - begin_s >= _LOCK_S:
                waits, self._no_wait_before_s = False, time.monotonic() + _NO_WAIT_S
            if not waits:
                raise CopyError(_KEPT)
            time.sleep(_LOCK_AGAIN_S)
        self._no_wait_before_s = float("-inf")

    def _is_locked(self) -> bool:
        if self._file < 0:
            raise CopyError("the shared table of rows is closed")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise CopyError(f"the shared table of rows cannot be locked ({error})") from error
        return True

    def close(self) -> None:
        """Let go of the file; nobody may have the lock. May be called again."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_KEPT = "another process does not let go of the shared table of rows"
_LOCKS: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _leave_behind() -> None:
    """Close all locks in a child: they would be kept for its parent, after that has ended, too."""
    for lock in _LOCKS:
        lock.close()


os.register_at_fork(after_in_child=_leave_behind)
