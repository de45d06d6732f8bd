"""What the copy engine asks of a GPU: few calls, so that a test can stand in for one.

Streams and events are those of torch. A call that fails raises; what was issued before it goes on. All that a stream
has to do is put into a list first, and then issued in one go: see `issuing`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import Tiling
from kvtide.copy.cuda.issuing import Gaps

Addresses = npt.NDArray[np.int64]


class Event(Protocol):
    """A point in a stream's work. Never recorded counts as reached."""

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

    def synchronize(self) -> object:
        """Block until all of it has run."""


class DeviceMemory(Protocol):
    """A piece of GPU memory. It is given back with its last reference."""

    @property
    def address(self) -> int:
        """Where it begins."""


class Gap(NamedTuple):
    """How a stream with much to copy lets others in: after each turn it and another stream wait for each other."""

    turn_bytes: int
    """A turn is one copy, and as many more as have at most so many bytes together."""
    other: Stream
    """It has nothing else to do."""
    our_turn: Event
    their_turn: Event


class Commands(Protocol):
    """What is to be issued, in this order. Nothing of it happens before `run`."""

    def copy(self, stream: Stream, to: Addresses, source: Addresses, sizes: Addresses, gap: Gap | None = None) -> None:
        """Make copies by DMA, in stream order, and leave gaps, if `run` is told so."""

    def record(self, stream: Stream, event: Event) -> None:
        """Put an event behind what comes before it on a stream."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what comes next on a stream begin after the last record of an event that comes before this."""

    def synchronize(self, event: Event) -> None:
        """Let the thread wait until the event is reached, and go on with the next command then."""

    def fetch(self, stream: Stream, to: DeviceMemory, pinned: Addresses) -> None:
        """Let a kernel bring a few numbers from pinned memory.

        A copy would have to wait until the copy engine is through with the large ones that others have queued.
        """

    def run(self, gaps: Gaps) -> None:
        """Issue everything, and forget it. Raises at the first command that fails; what comes before it goes on."""


class Mover(Protocol):
    """A kernel that copies blocks between their regions and rows."""

    def __call__(
        self,
        commands: Commands,
        stream: Stream,
        index: DeviceMemory,
        *,
        first: int,
        pairs: int,
        rows_at: int,
        row_bytes: int,
        scattered: bool,
    ) -> None:
        """Add it to the commands, for `pairs` pairs from pair `first` on.

        `index` has a block and a slot for each pair. A row's number is the pair's slot (`scattered`), or that of the
        pair, counted from `first`; its address is `rows_at + number * row_bytes`.
        """


class PackedMover(Protocol):
    """A kernel that packs blocks into rows while it gathers them, or unpacks rows while it scatters them."""

    def __call__(
        self,
        commands: Commands,
        stream: Stream,
        index: DeviceMemory,
        *,
        flags: DeviceMemory,
        first: int,
        pairs: int,
        rows_at: int,
        row_bytes: int,
        scattered: bool,
    ) -> None:
        """Add it to the commands. See `Mover`.

        For each pair whose block does not fit, the flag of that pair, a 32-bit number, becomes 1: packing only.
        """


class Gpu(ABC):
    """One GPU."""

    @abstractmethod
    def enter(self, stream: Stream | None = None) -> None:
        """Get a thread of our own ready for the other calls. `stream`, if given, becomes its current stream."""

    @abstractmethod
    def prove(self) -> None:
        """Find out, in a thread of our own, whether commands do what they should; if not, issue them another way."""

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
    def commands(self) -> Commands:
        """Return an empty list."""

    @abstractmethod
    def mover(self, direction: Direction, tiling: Tiling, table: DeviceMemory) -> Mover:
        """Return the kernel for a geometry. `table` is its table, addresses counted in elements from `table`.

        Its first use may take long, and is in a thread that has entered.
        """

    @abstractmethod
    def packed_mover(self, direction: Direction, tiles: int, table: DeviceMemory) -> PackedMover:
        """Return the kernel for `tiles` packed tiles. `table` is that of `packed_tiles`, addresses in 32-bit words.

        See `mover`.
        """

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
