"""The few calls of the system's C library that Python does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
from typing import Any

_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
_MAP_FIXED_NOREPLACE = 0x100000


@functools.cache
def load() -> Any:
    """Return the library; `ctypes.get_errno` then says why a call failed."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    return library


def madvise(address: int, nbytes: int, advice: int) -> None:
    """Give the kernel a hint. One that does not know it goes on without."""
    with contextlib.suppress(OSError, AttributeError):
        load().madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_int(advice))


def map_file(file: int, address: int, nbytes: int, begin: int = 0) -> None:
    """Map shared memory, from byte `begin` on, over what is mapped there. Raises OSError."""
    flags = mmap.MAP_SHARED | _MAP_FIXED
    place = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    if load().mmap(*place, _PROT_READ_WRITE, flags, ctypes.c_int(file), ctypes.c_long(begin)) != address:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def reserve(address: int, nbytes: int) -> None:
    """Keep addresses at which nothing is mapped from being used; whoever touches them is stopped by the system."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | _MAP_FIXED_NOREPLACE
    with contextlib.suppress(OSError, AttributeError):
        load().mmap(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _PROT_NONE, flags, -1, ctypes.c_long(0))
