"""A GPU by way of torch, Triton and the CUDA driver. Importing this module imports none of them."""

from __future__ import annotations

import contextlib
import importlib
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtide.copy import numa
from kvtide.copy.base import Direction
from kvtide.copy.cuda.driver import Driver
from kvtide.copy.cuda.geometry import Tiling
from kvtide.copy.cuda.gpu import Addresses, DeviceMemory, Event, Gpu, Mover, Stream
from kvtide.errors import ConfigError

_ELEMENTS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
_WARPS = 4
_FEW_COPIES = 4
_FETCH_LANES = 1024
_COMPILING = threading.Lock()
"""Triton is not known to compile one kernel in two threads."""


class TorchStream:
    """A stream of torch's, which is made to wait without letting go of the GIL."""

    def __init__(self, stream: Any, driver: Driver) -> None:
        self.torch, self._driver = stream, driver
        self.handle: int = stream.cuda_stream

    def wait_event(self, event: Event) -> None:
        """Let what is issued from now on begin after the event's last record."""
        assert isinstance(event, TorchEvent)
        self._driver.wait(self.handle, event.handle)

    def synchronize(self) -> None:
        """Block until all of it has run."""
        self.torch.synchronize()


class TorchEvent:
    """An event of torch's, which is recorded without letting go of the GIL."""

    def __init__(self, event: Any, driver: Driver) -> None:
        event.record()  # torch makes it now
        self._driver = driver
        self.handle: int = event.cuda_event
        self.query = event.query
        self.synchronize = event.synchronize
        self.wait = event.wait
        self._event = event

    def record(self, stream: Stream) -> None:
        """Put the point behind what was issued on a stream so far."""
        assert isinstance(stream, TorchStream)
        self._driver.record(self.handle, stream.handle)

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


class TorchGpu(Gpu):
    """GPU number `device` of this process. `programs` is how wide the gathering and scattering kernels run."""

    def __init__(self, device: int = 0, *, programs: int = 256) -> None:
        try:
            self._torch = importlib.import_module("torch")
            self._kernels = importlib.import_module("kvtide.copy.cuda.kernels")
        except ImportError as error:
            raise ConfigError("device", device, f"torch and triton to be installed ({error})") from error
        self._device = self._torch.device("cuda", device)
        try:
            self._driver = Driver()
            with self.active():
                self._torch.empty(1, device=self._device)  # makes the context, or says why there is none
                self._context = self._driver.current_context()
        except Exception as error:  # torch has many words for "no GPU"
            raise ConfigError("device", device, f"a GPU that works ({error})") from error
        self._programs = programs
        self._fetch: Any = None
        self._priority: int = self._torch.cuda.Stream.priority_range()[0]

    def enter(self, stream: Stream | None = None) -> None:
        """Make device and stream current in this thread, and keep it out of the way of graph captures."""
        self._driver.relax_capture()
        self._driver.use_context(self._context)
        self._torch.cuda.set_device(self._device)
        if stream is not None:
            assert isinstance(stream, TorchStream)
            self._torch.cuda.set_stream(stream.torch)

    def active(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which the device is the current one."""
        context: contextlib.AbstractContextManager[object] = self._torch.cuda.device(self._device)
        return context

    def stream(self) -> TorchStream:
        """Return a new stream of the lowest priority."""
        return TorchStream(self._torch.cuda.Stream(self._device, priority=self._priority), self._driver)

    def event(self, *, timing: bool = False) -> TorchEvent:
        """Return a new event; who waits for it on the host sleeps."""
        return TorchEvent(self._torch.cuda.Event(enable_timing=timing, blocking=True), self._driver)

    def allocate(self, nbytes: int) -> TorchMemory:
        """Return GPU memory from torch's allocator, so that torch counts it."""
        tensor = self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)
        numbers = tensor.view(self._torch.int64) if nbytes % 8 == 0 else None
        return TorchMemory(tensor, numbers, tensor.data_ptr())

    def allocate_pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return pinned host memory."""
        memory: npt.NDArray[np.uint8] = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()
        return memory

    def copy(self, stream: Stream, to: Addresses, source: Addresses, sizes: Addresses) -> None:
        """Issue copies by DMA."""
        assert isinstance(stream, TorchStream)
        if len(sizes) > _FEW_COPIES:
            self._driver.copy_batch(stream.handle, to, source, sizes)
        else:
            for one in zip(to.tolist(), source.tolist(), sizes.tolist(), strict=True):
                self._driver.copy(stream.handle, *one)

    def fetch(self, to: DeviceMemory, pinned: Addresses) -> None:
        """Issue a small kernel that reads host memory."""
        assert isinstance(to, TorchMemory)
        arguments = (to.numbers, (pinned.ctypes.data - to.address) // 8, pinned.size, _FETCH_LANES)
        grid = (max(1, -(-pinned.size // _FETCH_LANES)), 1, 1)
        if self._fetch is None:
            with _COMPILING:
                self._fetch = self._kernels.fetch_numbers[grid](*arguments)
        else:
            self._fetch[grid](*arguments)

    def mover(self, direction: Direction, tiling: Tiling, table: DeviceMemory) -> Mover:
        """Return the kernel, with all that does not change filled in: a launch is paid for in Python."""
        assert isinstance(table, TorchMemory)
        anchor = table.tensor.view(getattr(self._torch, _ELEMENTS[tiling.element_bytes]))
        return _TritonMover(self._kernels.move_tiles, direction, tiling, (anchor, table.numbers), self._programs)

    def pin(self, address: int, nbytes: int) -> None:
        """Register host memory."""
        self._driver.pin(address, nbytes)

    def unpin(self, address: int) -> None:
        """Take back a registration."""
        self._driver.unpin(address)

    def local_cpus(self) -> frozenset[int]:
        """Return the CPUs that the kernel calls local to the GPU's slot, and that this process may use."""
        slot = self._slot()
        return numa.cpus_of_device(slot) if slot is not None else frozenset()

    def local_node(self) -> int | None:
        """Return the NUMA node of the GPU's slot."""
        slot = self._slot()
        return numa.node_of_device(slot) if slot is not None else None

    def _slot(self) -> str | None:
        """Return the GPU's address on the PCI bus; None if torch does not tell, as old ones do not."""
        about = self._torch.cuda.get_device_properties(self._device)
        try:
            return f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
        except AttributeError:
            return None


class _TritonMover:
    def __init__(
        self, kernel: Any, direction: Direction, tiling: Tiling, tables: tuple[Any, Any], programs: int
    ) -> None:
        self._kernel, self._programs, self._tiling, self._tables = kernel, programs, tiling, tables
        self._anchor_at = tables[0].data_ptr() // tiling.element_bytes
        self._to_rows = direction is Direction.STORE
        self._compiled: dict[bool, Any] = {}

    def __call__(
        self, index: DeviceMemory, *, first: int, pairs: int, rows_at: int, row_bytes: int, scattered: bool
    ) -> None:
        assert isinstance(index, TorchMemory)
        tiling, width = self._tiling, self._tiling.element_bytes
        arguments = (
            *(*self._tables, index.numbers, first, pairs, tiling.tiles),
            *(rows_at // width - self._anchor_at, row_bytes // width),
            *(self._to_rows, scattered, tiling.units, tiling.lanes, tiling.align),
        )
        grid = (max(1, min(self._programs, -(-pairs * tiling.tiles // tiling.units))), 1, 1)
        compiled = self._compiled.get(scattered)
        if compiled is None:
            with _COMPILING:
                self._compiled[scattered] = self._kernel[grid](*arguments, num_warps=_WARPS)
        else:
            # Types and alignments never change, so there is nothing for Triton to look up: 20 microseconds less.
            compiled[grid](*arguments)
