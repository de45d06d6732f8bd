"""Host memory for blocks: one mapping, cut into slots of one size."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt

from kvtide.copy import libc
from kvtide.copy.memory_left import memory_left
from kvtide.core.share import ALL, Share
from kvtide.errors import ConfigError, CopyError
from kvtide.options import parse_count

HUGE_PAGE_BYTES = 2 << 20


class HostArena:
    """`slots` slots of `slot_bytes` bytes, zero at first. A page takes real memory once it is touched.

    Huge pages are used where the system has some: they are faster to read and to pin. An arena belongs to the process
    that made it: after a fork the child has no memory there. With `file` it is a mapping of that memory, which other
    processes may map too (`shared_memory`); the descriptor may be closed afterwards. All of it is mapped, `file_bytes`,
    which may be more than the slots need: huge pages are unmapped whole. The memory begins at byte `file_begin` of
    the file, where a huge page does. `share` tells such processes apart.

    Examples:
        >>> with HostArena(slots=4, slot_bytes=16) as arena:
        ...     arena.memory[3, :] = 7
        ...     arena.memory.shape
        (4, 16)

    """

    def __init__(
        self,
        slots: int,
        slot_bytes: int,
        *,
        file: int | None = None,
        file_bytes: int | None = None,
        file_begin: int = 0,
        share: Share = ALL,
    ) -> None:
        parse_count("slots", slots)
        parse_count("slot_bytes", slot_bytes)
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.shared = file is not None
        """Whether others may have the same memory, which was placed and checked for by whoever made it."""
        self.share = share
        self.nbytes = slots * slot_bytes if file_bytes is None else file_bytes
        """How much is mapped."""
        self._mapping, first = _map(self.nbytes, file, file_begin)
        flat = np.frombuffer(self._mapping, dtype=np.uint8, count=slots * slot_bytes, offset=first)
        self.address = int(flat.ctypes.data)
        """Where it is mapped."""
        self._reserved = self.address - first, len(self._mapping)
        """The address and the size of all that Python will unmap."""
        self._memory: npt.NDArray[np.uint8] | None = flat.reshape(slots, slot_bytes)
        self._end = first + slots * slot_bytes
        _ARENAS.add(self)

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The slots as rows of bytes."""
        if self._memory is None:
            raise CopyError("the host arena is closed")
        return self._memory

    @property
    def behind(self) -> npt.NDArray[np.uint8]:
        """What of `file_bytes` is not slots."""
        nbytes = self.nbytes - self.slots * self.slot_bytes
        return np.frombuffer(self._mapping, dtype=np.uint8, count=nbytes, offset=self._end)

    def pages_there(self) -> int:
        """Return how many bytes, from the first on, may be touched: all, unless somebody else makes the pages."""
        return self.slots * self.slot_bytes

    def close(self) -> None:
        """Give the memory back, at once or as soon as the last view of it is gone. May be called again."""
        self._memory = None
        # While somebody looks at the memory, a BufferError: unmapping it under a running copy would crash the
        # process. Python unmaps it when the last view goes.
        with contextlib.suppress(BufferError):
            self._mapping.close()
            _ARENAS.discard(self)

    def __enter__(self) -> HostArena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_too_much(size: int) -> None:
    """Say so if the machine does not have `size` bytes.

    A mapping larger than memory often succeeds and the process is killed when the pages are touched, hours
    later. So the size is compared with what is left before it is mapped.
    """
    left = memory_left()
    if size > left.nbytes:
        raise ConfigError("host", size, left.expected)


def _map(size: int, file: int | None, file_begin: int) -> tuple[mmap.mmap, int]:
    """Return a mapping, and where in it the memory begins."""
    try:
        if file is not None:
            mapping, first = _map_aligned(size, file, file_begin)
        else:
            refuse_too_much(size)
            mapping, first = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError("host", size, f"memory that this machine can give ({error})") from error
    # Without DONTFORK a child shares the pages, and each one that the parent writes to from then on is there twice.
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
        with contextlib.suppress(OSError, AttributeError):  # hints, which not every system knows
            mapping.madvise(getattr(mmap, advice))
    return mapping, first


def _map_aligned(size: int, file: int, file_begin: int) -> tuple[mmap.mmap, int]:
    """Map a file where its huge pages can be mapped whole: Linux sees to that for other memory, but not for files."""
    if os.fstat(file).st_size < file_begin + size:
        raise ValueError("the file is shorter than that")  # who reads beyond its end is killed
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | libc.MAP_NORESERVE
    whole = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=flags)
    try:
        address = np.frombuffer(whole, dtype=np.uint8).ctypes.data
        first = -address % HUGE_PAGE_BYTES
        libc.map_file(file, address + first, size, file_begin)
    except BaseException:
        whole.close()
        raise
    return whole, first


_ARENAS: weakref.WeakSet[HostArena] = weakref.WeakSet()


def _leave_behind() -> None:
    """In a child, close all arenas, and let nothing else be mapped at their addresses.

    Python still holds the mappings, and will one day unmap whatever is at these addresses by then. And who uses a view
    of an arena that is gone is stopped by the system, instead of reading or writing something else.
    """
    for arena in _ARENAS:
        arena._memory = None
        libc.reserve(*arena._reserved)


os.register_at_fork(after_in_child=_leave_behind)
