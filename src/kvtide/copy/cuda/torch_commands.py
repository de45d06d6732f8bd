"""Streams, events, memory and kernels of torch and Triton, as numbers in lists of commands."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kvtide.copy.cuda.driver import Driver
from kvtide.copy.cuda.gpu import Addresses, DeviceMemory, Event, Gap, Stream
from kvtide.copy.cuda.issuing import Gaps, Kind, Launch
from kvtide.errors import CopyError

_WARPS = 4
_WARP_THREADS = 32
_NO_GAP = (0, 0, 0, 0)
_BY_TRITON = (0, 0, 0, 0, 0)
FETCH_LANES = 1024
_SCRATCH = (0, 0)
"""Memory for what our kernels do not do. Triton's kernels have up to two more parameters for it, by version."""
_PLAIN = {
    "num_warps": _WARPS,
    "num_ctas": 1,
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}
"""What Triton says of a kernel that needs nothing but its parameters."""
_ADDRESSES = range(1, 1 << 63)
_NUMBERS = {"i32": range(-(1 << 31), 1 << 31), "i64": range(-(1 << 63), 1 << 63)}
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
        self._types: list[str] | None = None
        """Of its parameters, once it is known that the driver can launch it."""

    def compiled(self, arguments: Sequence[Any]) -> Any:
        """Return it as Triton compiles it for such arguments.

        Triton launches what it compiles. With nothing but zeros for numbers our kernels have nothing to do.
        """
        if self._compiled is None:
            zeros = [0 if isinstance(one, int) else one for one in arguments]
            with _COMPILING:
                self._compiled = self._kernel[1, 1, 1](*zeros, *self._constants, num_warps=_WARPS)
        return self._compiled

    def launch(self, stream: int, programs: int, arguments: Sequence[Any]) -> None:
        """Let Triton launch it."""
        self.compiled(arguments)[programs, 1, 1](*arguments, *self._constants, stream=stream)

    def in_numbers(self, arguments: Sequence[Any]) -> tuple[int, ...]:
        """Return what the driver is told: function, threads of a program, shared memory, how many parameters, they.

        Raises CopyError if Triton has made something of it that cannot be launched so.
        """
        compiled = self.compiled(arguments)
        if self._types is None:
            self._types = _parameter_types(compiled)
        values = [one if isinstance(one, int) else one.data_ptr() for one in arguments]
        if len(self._types) != len(values) or not all(map(_fits, self._types, values)):
            raise CopyError(f"a kernel of Triton's takes {self._types}, not {values}")
        place = compiled.function, _WARPS * _WARP_THREADS, compiled.metadata.shared
        return (*place, len(values) + len(_SCRATCH), *values, *_SCRATCH)


def _parameter_types(compiled: Any) -> list[str]:
    about = compiled.metadata
    found = {name: getattr(about, name, value) for name, value in _PLAIN.items()}
    if found != _PLAIN:
        raise CopyError(f"a kernel of Triton's is to be launched in a way of its own: {found}")
    return [type_ for type_ in compiled.src.signature.values() if type_ != "constexpr"]


def _fits(type_: str, value: int) -> bool:
    """Whether a number, of which the driver reads as many of the lowest bytes as the type has, is one of the type."""
    return value in (_ADDRESSES if type_.startswith("*") else _NUMBERS.get(type_, ()))


class TorchCommands:
    """A list of numbers: see `issuing`."""

    def __init__(self, driver: Driver, fetch: Kernel) -> None:
        self._driver, self._fetch = driver, fetch
        self._words: list[int] = []
        self._launches: list[Launch] = []
        self._kept: list[object] = []
        """Whose addresses and handles are in the list. An event whose owner takes another one would be destroyed."""

    def copy(self, stream: Stream, to: Addresses, source: Addresses, sizes: Addresses, gap: Gap | None = None) -> None:
        """Make copies by DMA, in stream order; many of them in one call where the driver can."""
        arrays = [np.ascontiguousarray(array, dtype=np.int64) for array in (to, source, sizes)]
        self._kept += arrays
        self._words += (Kind.COPY, self._handle(stream), *(array.ctypes.data for array in arrays), len(sizes))
        if gap is None:
            self._words += _NO_GAP
        else:
            self._words += (gap.turn_bytes, *map(self._handle, (gap.other, gap.our_turn, gap.their_turn)))

    def record(self, stream: Stream, event: Event) -> None:
        """Put an event behind what comes before it on a stream."""
        self._words += (Kind.RECORD, self._handle(stream), self._handle(event))

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what comes next on a stream begin after an event."""
        self._words += (Kind.WAIT, self._handle(stream), self._handle(event))

    def synchronize(self, event: Event) -> None:
        """Let the thread wait for an event."""
        self._words += (Kind.SYNCHRONIZE, self._handle(event))

    def fetch(self, stream: Stream, to: DeviceMemory, pinned: Addresses) -> None:
        """Let a small kernel read host memory."""
        assert isinstance(to, TorchMemory)
        arguments = (to.numbers, (pinned.ctypes.data - to.address) // 8, pinned.size)
        self.launch(stream, self._fetch, max(1, -(-pinned.size // FETCH_LANES)), arguments)

    def launch(self, stream: Stream, kernel: Kernel, programs: int, arguments: Sequence[Any]) -> None:
        """Launch a kernel; arguments are whole numbers and tensors."""
        handle = self._handle(stream)
        if self._driver.in_c:
            self._kept += (kernel, arguments)
            function, *how = kernel.in_numbers(arguments)
            self._words += (Kind.LAUNCH, handle, function, programs, *how)
        else:
            self._launches.append(partial(kernel.launch, handle, programs, arguments))
            self._words += (Kind.LAUNCH, handle, *_BY_TRITON)

    def run(self, gaps: Gaps) -> None:
        """Issue everything, and forget it."""
        words, self._words = self._words, []
        launches, self._launches = self._launches, []
        kept, self._kept = self._kept, []
        if words:
            self._driver.issue(words, gaps, launches)
        kept.clear()

    def _handle(self, one: Stream | Event) -> int:
        assert isinstance(one, TorchStream | TorchEvent)
        self._kept.append(one)
        return one.handle
