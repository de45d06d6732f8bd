"""Makes the pages of shared memory real, from the first to the last, as a program: `python pages.py FILE BYTES [huge]`.

A process of its own, for the kernel locks the memory of who asks: all threads of a node that map or unmap something
would wait, on a virtual machine up to 0.4 s for a huge page. It imports nothing of kvtide, to start in a moment.

It writes a byte for each piece, and `!` with the reason if one cannot be had. When nobody reads that, it ends.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import sys
from collections.abc import Callable

PIECE_BYTES = 2 << 20
"""A huge page."""
HUGE, SMALL, FAILED = b"h", b"s", b"!"
_MADV_POPULATE_WRITE = 23  # Linux 5.14; changes no byte
_MADV_COLLAPSE = 25  # Linux 6.1
_MAP_FIXED = 0x10
_REFUSALS_MAX = 8
"""Where memory is in small pieces, each try takes its time."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p


def touch(file: int, nbytes: int, tell: Callable[[bytes], object], *, huge: bool) -> None:
    """Make all pages of a file real; `tell` hears of each piece. `huge`: the kernel makes huge pages only if asked."""
    window = mmap.mmap(-1, 2 * PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(window))
    address = -(-start // PIECE_BYTES) * PIECE_BYTES
    tries_left = _REFUSALS_MAX if huge else 0
    for offset in range(0, nbytes, PIECE_BYTES):
        piece_bytes = min(PIECE_BYTES, nbytes - offset)
        _map(file, offset, address, piece_bytes)
        if tries_left and piece_bytes == PIECE_BYTES:
            if _collapse(address):
                tell(HUGE)
                continue
            tries_left -= 1
        _populate(address, piece_bytes)
        tell(SMALL)


def _map(file: int, offset: int, address: int, nbytes: int) -> None:
    flags = mmap.MAP_SHARED | _MAP_FIXED
    place = ctypes.c_void_p(address), ctypes.c_size_t(nbytes)
    prot = mmap.PROT_READ | mmap.PROT_WRITE
    if _LIBC.mmap(*place, prot, flags, ctypes.c_int(file), ctypes.c_long(offset)) != address:
        raise _error()


def _collapse(address: int) -> bool:
    """Make a piece one huge page, whatever is set for shared memory; False: it cannot be had."""
    _populate(address, mmap.PAGESIZE)  # of nothing it makes nothing
    return _madvise(address, PIECE_BYTES, _MADV_COLLAPSE)


def _populate(address: int, nbytes: int) -> None:
    if _madvise(address, nbytes, _MADV_POPULATE_WRITE):
        return
    if ctypes.get_errno() != errno.EINVAL:
        raise _error()
    for page in range(address, address + nbytes, mmap.PAGESIZE):  # an older kernel: reading makes a shared page, too
        ctypes.string_at(page, 1)


def _madvise(address: int, nbytes: int, advice: int) -> bool:
    return bool(_LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_int(advice)) == 0)


def _error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    """Touch what the arguments say."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the node, which ends this program when it is time
        signal.signal(number, signal.SIG_IGN)
    file, nbytes, *huge = sys.argv[1:]
    try:
        touch(int(file), int(nbytes), lambda piece: os.write(1, piece), huge=bool(huge))
    except BrokenPipeError:
        return  # the node is gone
    except OSError as error:
        os.write(1, FAILED + f"{error.strerror}".encode())


if __name__ == "__main__":
    main()
