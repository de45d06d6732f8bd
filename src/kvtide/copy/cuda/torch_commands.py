"""Streams, events, memory and kernels of torch and Triton, as numbers in lists of commands."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtide.copy.cuda.driver import Driver
from kvtide.copy.cuda.gpu import Addresses, DeviceMemory, Event, Gap, Stream
from kvtide.copy.cuda.issuing import Gaps, Kind

_WARPS = 4
_WARP_THREADS = 32
_NO_GAP = (0, 0, 0, 0)
FETCH_LANES = 1024
_SCRATCH = (0, 0)
"""Memory for what our kernels do not do. Triton's kernels have up to two more parameters for it, by version."""
_COMPILING = threading.Lock()
"""Triton is not known to compile one kernel in two threads."""


class TorchStream:
    """A stream of torch's."""

    def __init__(self, stream: Any) -> None:
        self.torch = stream
        self.handle: int = stream.cuda_stream
        self.synchronize = stream.synchronize


class TorchEvent:
    """An event of torch's."""

    def __init__(self, event: Any) -> None:
        event.record()  # torch makes it now
        self.handle: int = event.cuda_event
        self.query = event.query
        self.synchronize = event.synchronize
        self.wait = event.wait
        self._event = event

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this point to another."""
        assert isinstance(end_event, TorchEvent)
        return float(self._event.elapsed_time(end_event._event))


@dataclass(frozen=True, slots=True, eq=False)
class TorchMemory:
    """GPU memory that is a torch tensor of bytes."""

    tensor: Any
    numbers: Any
    """The same as 64-bit integers, where its size allows."""
    address: int


class Kernel:
    """A kernel of Triton's with all its constants. Types and alignments of its arguments never change."""

    def __init__(self, kernel: Any, *constants: object) -> None:
        self._kernel, self._constants = kernel, constants
        self._compiled: Any = None

    def compiled(self, arguments: Sequence[Any]) -> Any:
        """Return it as Triton compiles it for such arguments.

        Triton launches what it compiles. With nothing but zeros for numbers our kernels have nothing to do.
        """
        if self._compiled is None:
            zeros = [0 if isinstance(one, int) else one for one in arguments]
            with _COMPILING:
                self._compiled = self._kernel[1, 1, 1](*zeros, *self._constants, num_warps=_WARPS)
        return self._compiled


class TorchCommands:
    """A list of numbers: see `issuing`."""

    def __init__(self, driver: Driver, fetch: Kernel) -> None:
        self._driver, self._fetch = driver, fetch
        self._words: list[int] = []
        self._arrays: list[Addresses] = []
        """Whose addresses are in the list."""

    def copy(self, stream: Stream, to: Addresses, source: Addresses, sizes: Addresses, gap: Gap | None = None) -> None:
        """Make copies by DMA, in stream order; many of them in one call where the driver can."""
        assert isinstance(stream, TorchStream)
        arrays = [np.ascontiguousarray(array, dtype=np.int64) for array in (to, source, sizes)]
        self._arrays += arrays
        self._words += (Kind.COPY, stream.handle, *(array.ctypes.data for array in arrays), len(sizes))
        if gap is None:
            self._words += _NO_GAP
        else:
            assert isinstance(gap.other, TorchStream)
            assert isinstance(gap.our_turn, TorchEvent)
            assert isinstance(gap.their_turn, TorchEvent)
            self._words += (gap.turn_bytes, gap.other.handle, gap.our_turn.handle, gap.their_turn.handle)

    def record(self, stream: Stream, event: Event) -> None:
        """Put an event behind what comes before it on a stream."""
        assert isinstance(stream, TorchStream)
        assert isinstance(event, TorchEvent)
        self._words += (Kind.RECORD, stream.handle, event.handle)

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what comes next on a stream begin after an event."""
        assert isinstance(stream, TorchStream)
        assert isinstance(event, TorchEvent)
        self._words += (Kind.WAIT, stream.handle, event.handle)

    def synchronize(self, event: Event) -> None:
        """Let the thread wait for an event."""
        assert isinstance(event, TorchEvent)
        self._words += (Kind.SYNCHRONIZE, event.handle)

    def fetch(self, stream: Stream, to: DeviceMemory, pinned: Addresses) -> None:
        """Let a small kernel read host memory."""
        assert isinstance(to, TorchMemory)
        arguments = (to.numbers, (pinned.ctypes.data - to.address) // 8, pinned.size)
        self.launch(stream, self._fetch, max(1, -(-pinned.size // FETCH_LANES)), arguments)

    def launch(self, stream: Stream, kernel: Kernel, programs: int, arguments: Sequence[Any]) -> None:
        """Launch a kernel; arguments are whole numbers and tensors."""
        assert isinstance(stream, TorchStream)
        compiled = kernel.compiled(arguments)
        values = [one if isinstance(one, int) else one.data_ptr() for one in arguments]
        place = (stream.handle, compiled.function, programs, _WARPS * _WARP_THREADS, compiled.metadata.shared)
        self._words += (Kind.LAUNCH, *place, len(values) + len(_SCRATCH), *values, *_SCRATCH)

    def run(self, gaps: Gaps) -> None:
        """Issue everything, and forget it."""
        words, self._words = self._words, []
        arrays, self._arrays = self._arrays, []
        if words:
            self._driver.issue(words, gaps)
        arrays.clear()
