"""Makes the pages of a mapping real, in the background, from the first to the last."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable

from kvtide.copy import libc
from kvtide.errors import describe

PIECE_BYTES = 2 << 20
"""Touched at once. While it is, no other thread of the process can map or unmap anything: half a millisecond."""
_MADV_POPULATE_WRITE = 23  # Linux 5.14; changes no byte
_MADV_COLLAPSE = 25  # Linux 6.1
_REFUSALS_MAX = 8
"""Where memory is in small pieces, each try takes its time."""
_STOP_TIMEOUT_S = 10.0


class Touching:
    """One thread for one mapping. `touched_bytes` grows; what is below it is there.

    `collapses`: the kernel is asked for huge pages, which it does not give to shared memory by itself.
    """

    def __init__(self, name: str, address: int, nbytes: int, *, collapses: bool = False) -> None:
        self._address = address
        self._nbytes = nbytes
        self._tries_left = _REFUSALS_MAX if collapses else 0
        self._stopped = threading.Event()
        self._on_end: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.touched_bytes = 0
        self.failure = ""

    def start(self, on_end: Callable[[], None]) -> None:
        """Begin; `on_end` is called by the thread, however it ends."""
        self._on_end = on_end
        self._thread.start()

    def stop(self) -> None:
        """Stop, if it has begun. Afterwards the mapping may go."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_TIMEOUT_S)
            assert not self._thread.is_alive(), "touching one piece does not end"

    def _run(self) -> None:
        try:
            while self.touched_bytes < self._nbytes and not self._stopped.is_set():
                piece = min(PIECE_BYTES, self._nbytes - self.touched_bytes)
                self._touch(self._address + self.touched_bytes, piece)
                self.touched_bytes += piece
        except BaseException as error:  # told by who asks: the node serves the slots that it has
            self.failure = describe(error)
        if not self._stopped.is_set():
            self._on_end()

    def _touch(self, address: int, nbytes: int) -> None:
        if self._tries_left and nbytes == PIECE_BYTES:
            if collapse(address):
                return
            self._tries_left -= 1
        _populate(address, nbytes)


def collapse(address: int) -> bool:
    """Make the piece at an address one huge page, whatever is set for shared memory; False: it cannot be had."""
    _populate(address, mmap.PAGESIZE)  # of nothing it makes nothing
    place = ctypes.c_void_p(address), ctypes.c_size_t(PIECE_BYTES)
    return bool(libc.load().madvise(*place, ctypes.c_int(_MADV_COLLAPSE)) == 0)


def _populate(address: int, nbytes: int) -> None:
    code = libc.load().madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_int(_MADV_POPULATE_WRITE))
    if code == 0:
        return
    error = ctypes.get_errno()
    if error != errno.EINVAL:
        raise OSError(error, os.strerror(error))
    for page in range(address, address + nbytes, mmap.PAGESIZE):  # an older kernel: reading makes a shared page, too
        ctypes.string_at(page, 1)
