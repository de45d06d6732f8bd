"""Memory that came, or goes, as a descriptor, mapped: slots of one size, shared with whoever else has it."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt

from kvtide.copy import libc
from kvtide.errors import CopyError
from kvtide.node.errors import BadFrame
from kvtide.node.hello import ArenaDescription

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Its size never changes: who reads where memory has ended is killed."""


class MappedArena:
    """The slots of an arena, as rows of bytes. The descriptor is not needed any more once it is mapped.

    Like every arena it belongs to the process that mapped it: after a fork the child has no memory there.

    Raises:
        BadFrame: the memory is not what its description says.

    """

    def __init__(self, descriptor: int, description: ArenaDescription) -> None:
        _check(descriptor, description)
        self.description = description
        try:
            self._mapping = mmap.mmap(descriptor, description.nbytes, flags=mmap.MAP_SHARED)
        except (OSError, ValueError) as error:
            raise BadFrame(f"memory that cannot be mapped ({error})") from error
        for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            with contextlib.suppress(OSError, AttributeError):  # hints, which not every system knows
                self._mapping.madvise(getattr(mmap, advice))
        slots, slot_bytes = description.slots, description.slot_bytes
        flat = np.frombuffer(self._mapping, dtype=np.uint8, count=slots * slot_bytes)
        self.address = int(flat.ctypes.data)
        self._memory: npt.NDArray[np.uint8] | None = flat.reshape(slots, slot_bytes)
        _MAPPED.add(self)

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The slots as rows of bytes."""
        if self._memory is None:
            raise CopyError("the arena is closed")
        return self._memory

    def close(self) -> None:
        """Unmap it, at once or as soon as the last view of it is gone. May be called again."""
        self._memory = None
        with contextlib.suppress(BufferError):  # somebody still looks at it; Python unmaps it when the last view goes
            self._mapping.close()
            _MAPPED.discard(self)


def _check(descriptor: int, description: ArenaDescription) -> None:
    used = description.slots * description.slot_bytes
    if not 0 < used <= description.nbytes:
        raise BadFrame(f"an arena of {description.nbytes} bytes with {used} bytes of slots")
    try:
        size, seals = os.fstat(descriptor).st_size, fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise BadFrame(f"a descriptor that is no memory ({error.strerror})") from error
    if size != description.nbytes:
        raise BadFrame(f"an arena of {size} bytes instead of {description.nbytes}")
    if seals & SEALS != SEALS:
        raise BadFrame("an arena whose size can change")


_MAPPED: weakref.WeakSet[MappedArena] = weakref.WeakSet()


def _leave_behind() -> None:
    """In a child, close all arenas, and let nothing else be mapped at their addresses (see `copy/arena.py`)."""
    for arena in _MAPPED:
        arena._memory = None
        libc.reserve(arena.address, arena.description.nbytes)


os.register_at_fork(after_in_child=_leave_behind)
