"""Moves blocks between device memory and host memory, beside compute.

A device's blocks (`Region`, `DeviceCache`) and the host's slots (`HostArena`) are joined by a `CopyEngine`,
which runs transfers and reports each of them once, as done or as failed.
"""

from __future__ import annotations

from kvtide.copy.arena import HostArena
from kvtide.copy.base import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.copy.lives import HostMemory, LivesCopyEngine
from kvtide.copy.null import NullCopyEngine
from kvtide.copy.regions import DeviceCache, Region, regions_of
from kvtide.copy.threads import ThreadedCopyEngine

__all__ = [
    "CopyEngine",
    "DeviceCache",
    "Direction",
    "Fence",
    "Finished",
    "HostArena",
    "HostMemory",
    "LivesCopyEngine",
    "NullCopyEngine",
    "Region",
    "ThreadedCopyEngine",
    "Traffic",
    "regions_of",
]
