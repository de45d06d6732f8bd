"""Memory that the kernel can read and write without the page cache: it begins and ends on page boundaries."""

from __future__ import annotations

import mmap
import threading

import numpy as np

PAGE = 4096
"""Direct I/O works in these on every disk: offsets, lengths and addresses are multiples of it."""


def pages(size: int) -> int:
    """Return how many pages hold `size` bytes."""
    return -(-size // PAGE)


def aligned(size: int) -> memoryview:
    """Return zeroed memory of at least `size` bytes that begins and ends on page boundaries."""
    return memoryview(mmap.mmap(-1, max(1, pages(size)) * PAGE))


def is_aligned(buffer: memoryview) -> bool:
    """Say whether direct I/O can use this memory as it is."""
    if not buffer.nbytes or buffer.nbytes % PAGE:
        return not buffer.nbytes
    return not np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] % PAGE


class Bounce(threading.local):
    """Aligned memory for blocks that are not: one buffer for each thread, as large as the largest of its blocks."""

    def __init__(self) -> None:
        self._memory = aligned(PAGE)

    def buffer(self, size: int) -> memoryview:
        """Return memory of `size` bytes, rounded up to pages, with anything in it. The next call overwrites it."""
        if self._memory.nbytes < size:
            self._memory = aligned(size)
        return self._memory[: pages(size) * PAGE]
