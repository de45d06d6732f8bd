"""What the copy engine asks of a GPU: few calls, so that a test can stand in for one.

Streams and events are those of torch. A call that fails raises; what was issued before it goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import Tiling

Addresses = npt.NDArray[np.int64]


class Event(Protocol):
    """A point in a stream's work. Never recorded counts as reached."""

    def record(self, stream: Stream) -> object:
        """Put the point behind what was issued on a stream so far."""

    def query(self) -> bool:
        """Whether the point was reached. Raises if the device is lost."""

    def synchronize(self) -> object:
        """Block until it is."""

    def wait(self) -> object:
        """Let what is issued from now on, on the thread's current stream, begin after it."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this point to another."""


class Stream(Protocol):
    """Work that runs in the order in which it was issued."""

    def wait_event(self, event: Event) -> object:
        """Let what is issued from now on begin after the event's last record."""

    def synchronize(self) -> object:
        """Block until all of it has run."""


class DeviceMemory(Protocol):
    """A piece of GPU memory. It is given back with its last reference."""

    @property
    def address(self) -> int:
        """Where it begins."""


class Mover(Protocol):
    """A kernel that copies blocks between their regions and rows."""

    def __call__(
        self, index: DeviceMemory, *, first: int, pairs: int, rows_at: int, row_bytes: int, scattered: bool
    ) -> None:
        """Issue it on the thread's current stream, for `pairs` pairs from pair `first` on.

        `index` has a block and a slot for each pair. A row's number is the pair's slot (`scattered`), or that of the
        pair, counted from `first`; its address is `rows_at + number * row_bytes`.
        """


class Gpu(ABC):
    """One GPU."""

    @abstractmethod
    def enter(self, stream: Stream | None = None) -> None:
        """Get a thread of our own ready for the other calls. `stream`, if given, becomes its current stream."""

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which a thread of somebody else's can make the other calls."""
        return nullcontext()

    @abstractmethod
    def stream(self) -> Stream:
        """Return a new stream of the lowest priority."""

    @abstractmethod
    def event(self, *, timing: bool = False) -> Event:
        """Return a new event. `timing`: `elapsed_time` will be asked of it, in milliseconds."""

    @abstractmethod
    def allocate(self, nbytes: int) -> DeviceMemory:
        """Return GPU memory, its address divisible by 256."""

    @abstractmethod
    def allocate_pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return a little pinned host memory; not for the arena."""

    @abstractmethod
    def copy(self, stream: Stream, to: Addresses, source: Addresses, sizes: Addresses) -> None:
        """Issue copies by DMA on a stream, in stream order."""

    @abstractmethod
    def fetch(self, to: DeviceMemory, pinned: Addresses) -> None:
        """Let a kernel on the thread's current stream bring a few numbers from pinned memory.

        A copy would have to wait until the copy engine is through with the large ones that others have queued.
        """

    @abstractmethod
    def mover(self, direction: Direction, tiling: Tiling, table: DeviceMemory) -> Mover:
        """Return the kernel for a geometry. `table` is its table, addresses counted in elements from `table`."""

    @abstractmethod
    def pin(self, address: int, nbytes: int) -> None:
        """Register host memory for DMA and for kernels."""

    @abstractmethod
    def unpin(self, address: int) -> None:
        """Take back a registration."""

    def local_cpus(self) -> frozenset[int]:
        """Return the CPUs whose memory is next to the GPU; none if that cannot be told."""
        return frozenset()

    def local_node(self) -> int | None:
        """Return the NUMA node whose memory is next to the GPU; None if that cannot be told."""
        return None
