"""Reading and writing files: direct where the file system allows it. All of it releases the GIL."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from kvtide.tiers.disk.aligned import PAGE, aligned, is_aligned

FILE_MODE, FOLDER_MODE = 0o600, 0o700
BUFFERS_MAX = 512
"""Buffers in one system call; the kernel takes 1,024."""


class IoMode(enum.Enum):
    """How files are read and written."""

    DIRECT = "direct"
    """Past the page cache: the memory of the machine belongs to the engine."""
    BUFFERED = "buffered"
    """Through the page cache, and dropped from it afterwards."""
    CACHED = "cached"
    """Through the page cache, and left there as long as the kernel likes."""


def probe(folder: Path) -> IoMode:
    """Try whether direct I/O works in a folder, and leave nothing there."""
    path = folder / "probe.tmp"
    try:
        file = open_file(path, IoMode.DIRECT, create=True)
        try:
            page = aligned(PAGE)
            write_all(file, [page], 0)
            works = read_all(file, [page], 0) == PAGE
        finally:
            os.close(file)
    except OSError:
        works = False
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # some file systems make the file, and only then refuse
    return IoMode.DIRECT if works else IoMode.BUFFERED


def open_file(path: Path, mode: IoMode, *, create: bool = False) -> int:
    """Open a file that only its owner can read."""
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    if mode is IoMode.DIRECT:
        flags |= os.O_DIRECT
    return os.open(path, flags, FILE_MODE)


def moves_as_it_is(buffer: memoryview, mode: IoMode) -> bool:
    """Say whether whole pages can be read to this memory, or written from it."""
    return is_aligned(buffer) if mode is IoMode.DIRECT else not buffer.nbytes % PAGE


def write_all(file: int, buffers: Sequence[memoryview], offset: int) -> None:
    """Write everything, or raise the `OSError` that kept it from being written."""
    left = [buffer for buffer in buffers if buffer.nbytes]
    while left:
        written = os.pwritev(file, left[:BUFFERS_MAX], offset)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        offset += written
        left = _without(left, written)


def read_all(file: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill the buffers; return how many bytes there were: fewer at the end of a file."""
    left, done = [buffer for buffer in buffers if buffer.nbytes], 0
    while left:
        count = os.preadv(file, left[:BUFFERS_MAX], offset + done)
        if not count:
            break
        done += count
        left = _without(left, count)
    return done


def _without(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of the buffers after `count` bytes."""
    for position, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[position + 1 :]]
        count -= buffer.nbytes
    return []


def drop_cached(file: int, offset: int, size: int) -> None:
    """Ask the kernel to write out and forget pages: what has been written stays until it is on the disk."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file whole: at any moment the old or the new content is there."""
    temporary = path.with_name(f"{path.name}.tmp")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        write_all(file, [memoryview(content)], 0)
        os.fsync(file)
    finally:
        os.close(file)
    temporary.replace(path)
