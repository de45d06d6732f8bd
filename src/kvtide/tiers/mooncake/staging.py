"""Memory of kvtide's own that the client may read and write: one region for each thread."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np

PART_BYTES = 16 << 20
"""What a thread takes of a call, and the client carries at a time: with less, round trips to the master weigh more."""
REGION_BYTES = PART_BYTES + (1 << 20)
"""A part and its headers."""


def address_of(memory: memoryview) -> int:
    """Return where memory begins. It must live as long as the address is used."""
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)


class Region:
    """Registered memory for one thread's call at a time: a call that never returns keeps its thread, and so this."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, REGION_BYTES))
        self.address = address_of(self.memory)


class Staging:
    """Lends each thread its region, and registers it once."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._lock = threading.Lock()
        self._regions: list[Region] = []

    def region(self, store: Any) -> Region:
        """Return the calling thread's region."""
        region: Region | None = getattr(self._own, "region", None)
        if region is None:
            region = self._own.region = Region()
            with self._lock:
                self._regions.append(region)
            store.register_buffer(region.address, REGION_BYTES)
        return region

    def unregister(self, store: Any) -> None:
        """Take all regions back from the client."""
        with self._lock:
            regions, self._regions = self._regions, []
        for region in regions:
            store.unregister_buffer(region.address)
        self._own = threading.local()
