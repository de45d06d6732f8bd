"""A GPU by way of torch, Triton and the CUDA driver. Importing this module imports none of them."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtide.copy import numa
from kvtide.copy.base import Direction
from kvtide.copy.cuda.driver import Driver
from kvtide.copy.cuda.geometry import Tiling
from kvtide.copy.cuda.gpu import Commands, DeviceMemory, Gpu, Mover, PackedMover, Stream
from kvtide.copy.cuda.proof import prove
from kvtide.copy.cuda.torch_commands import FETCH_LANES, Kernel, TorchCommands, TorchEvent, TorchMemory, TorchStream
from kvtide.copy.packing.format import ESCAPES_MAX
from kvtide.errors import ConfigError

_PACKED_UNITS = 4
"""Tiles that a program packs or unpacks at a time: one for each warp."""
_WORD_BYTES = 4
_ELEMENTS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


class TorchGpu(Gpu):
    """GPU number `device` of this process. `programs` is how wide the gathering and scattering kernels run.

    `in_c=False` issues from Python, to compare with.
    """

    def __init__(self, device: int = 0, *, programs: int = 256, in_c: bool = True) -> None:
        try:
            self._torch = importlib.import_module("torch")
            self._kernels = importlib.import_module("kvtide.copy.cuda.kernels")
        except ImportError as error:
            raise ConfigError("device", device, f"torch and triton to be installed ({error})") from error
        self._device = self._torch.device("cuda", device)
        try:
            self._driver = Driver(in_c=in_c)
            with self._torch.cuda.device(self._device):
                # Makes the context current, or says why there is none. Memory alone may be had without.
                self._torch.cuda.Event().record()
                self._context = self._driver.current_context()
        except Exception as error:  # torch has many words for "no GPU"
            raise ConfigError("device", device, f"a GPU that works ({error})") from error
        self._programs = programs
        self._proving = threading.Lock()
        self._proved = False
        self._fetch = Kernel(self._kernels.fetch_numbers, FETCH_LANES)
        self._priority: int = self._torch.cuda.Stream.priority_range()[0]

    @property
    def in_c(self) -> bool:
        """Whether commands are issued without the GIL; decided for good when `prove` has returned."""
        return self._driver.in_c

    def enter(self, stream: Stream | None = None) -> None:
        """Make device and stream current in this thread, and keep it out of the way of graph captures."""
        self._driver.relax_capture()
        self._driver.use_context(self._context)
        self._torch.cuda.set_device(self._device)
        if stream is not None:
            assert isinstance(stream, TorchStream)
            self._torch.cuda.set_stream(stream.torch)

    def prove(self) -> None:
        """Let C copy a few blocks, once. If that does not work, Python issues from now on."""
        with self._proving:
            if self._driver.in_c and not self._proved:
                try:
                    prove(self)
                except Exception as error:
                    self._driver.issue_from_python(error)
                self._proved = True

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which the device is the current one, also for the driver.

        For the first device torch does nothing: a thread that has not used it yet would have no context, and the driver
        would refuse even to take a registration back.
        """
        with self._torch.cuda.device(self._device), self._driver.lend(self._context):
            yield

    def stream(self) -> TorchStream:
        """Return a new stream of the lowest priority."""
        return TorchStream(self._torch.cuda.Stream(self._device, priority=self._priority))

    def event(self, *, timing: bool = False) -> TorchEvent:
        """Return a new event; who waits for it on the host sleeps."""
        return TorchEvent(self._torch.cuda.Event(enable_timing=timing, blocking=True))

    def allocate(self, nbytes: int) -> TorchMemory:
        """Return GPU memory from torch's allocator, so that torch counts it.

        It hands out what compute has given back at once, while kernels that use it still run: that is safe on the
        stream of compute, and nowhere else. So they are waited for. A stream of our own instead, made current here,
        would be taken by vLLM for its own choice.
        """
        tensor = self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)
        self._torch.cuda.current_stream(self._device).synchronize()
        numbers = tensor.view(self._torch.int64) if nbytes % 8 == 0 else None
        return TorchMemory(tensor, numbers, tensor.data_ptr())

    def allocate_pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return pinned host memory."""
        memory: npt.NDArray[np.uint8] = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()
        return memory

    def commands(self) -> TorchCommands:
        """Return an empty list."""
        return TorchCommands(self._driver, self._fetch)

    def mover(self, direction: Direction, tiling: Tiling, table: DeviceMemory) -> Mover:
        """Return the kernel, with all that does not change filled in: a launch is paid for in Python."""
        assert isinstance(table, TorchMemory)
        anchor = table.tensor.view(getattr(self._torch, _ELEMENTS[tiling.element_bytes]))
        return _TritonMover(self._kernels.move_tiles, direction, tiling, (anchor, table.numbers), self._programs)

    def packed_mover(self, direction: Direction, tiles: int, table: DeviceMemory) -> PackedMover:
        """Return the packing kernel, or the unpacking one, with all that does not change filled in."""
        assert isinstance(table, TorchMemory)
        kernels = importlib.import_module("kvtide.copy.cuda.packing_kernels")
        kernel = kernels.pack_blocks if direction is Direction.STORE else kernels.unpack_blocks
        flagged = direction is Direction.STORE
        return _TritonPackedMover(kernel, self._torch, table, tiles, self._programs, flagged=flagged)

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
        self._programs, self._tiling, self._tables = programs, tiling, tables
        self._anchor_at = tables[0].data_ptr() // tiling.element_bytes
        to_rows = direction is Direction.STORE
        self._kernels = {
            scattered: Kernel(kernel, to_rows, scattered, tiling.units, tiling.lanes, tiling.align)
            for scattered in (False, True)
        }

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
        assert isinstance(index, TorchMemory)
        assert isinstance(commands, TorchCommands)
        tiling, width = self._tiling, self._tiling.element_bytes
        rows = rows_at // width - self._anchor_at, row_bytes // width
        arguments = (*self._tables, index.numbers, first, pairs, tiling.tiles, *rows)
        programs = max(1, min(self._programs, -(-pairs * tiling.tiles // tiling.units)))
        commands.launch(stream, self._kernels[scattered], programs, arguments)


class _TritonPackedMover:
    def __init__(
        self, kernel: Any, torch: Any, table: TorchMemory, tiles: int, programs: int, *, flagged: bool
    ) -> None:
        self._torch, self._tiles, self._programs, self._flagged = torch, tiles, programs, flagged
        self._tables = table.tensor.view(torch.int32), table.tensor.view(torch.int8), table.numbers
        self._anchor_at = table.address // _WORD_BYTES
        self._kernels = {
            scattered: Kernel(kernel, scattered, ESCAPES_MAX, _PACKED_UNITS) for scattered in (False, True)
        }

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
        assert isinstance(index, TorchMemory)
        assert isinstance(flags, TorchMemory)
        assert isinstance(commands, TorchCommands)
        told = (flags.tensor.view(self._torch.int32),) if self._flagged else ()
        rows = rows_at // _WORD_BYTES - self._anchor_at, row_bytes // _WORD_BYTES
        arguments = (*self._tables, index.numbers, *told, first, pairs, self._tiles, *rows)
        programs = max(1, min(self._programs, -(-pairs * self._tiles // _PACKED_UNITS)))
        commands.launch(stream, self._kernels[scattered], programs, arguments)
