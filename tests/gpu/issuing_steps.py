"""Issues one command after another on a real GPU, and says of each whether it did what it should.

    python -X faulthandler -m tests.gpu.issuing_steps [--python]

A command that crashes is the one behind the last line.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import CudaCache, CudaRegion, tiling
from kvtide.copy.cuda.gpu import Gap, Gpu
from kvtide.copy.cuda.issuing import NO_GAPS
from kvtide.copy.cuda.proof import prove
from kvtide.copy.cuda.torch_gpu import TorchGpu

FRAGMENTS = (1, 2, 4, 8, 16, 4096, 16 << 10, 40_000)
"""Bytes: each is a kernel of its own."""
BYTES = 1 << 20


class Steps:
    """The steps, with memory for them."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.stream, self.other = self.gpu.stream(), self.gpu.stream()
        self.gpu.enter(self.stream)
        self.host = self.gpu.allocate_pinned(BYTES)
        self.host[:] = np.random.default_rng(0).integers(0, 256, BYTES, np.uint8)
        self.back = self.gpu.allocate_pinned(BYTES)
        self.device = self.gpu.allocate(BYTES)
        self._pinned: list[Any] = []
        """What the commands read that are under way."""

    def all(self) -> dict[str, Callable[[], None]]:
        """Return them by name, from simple to compound."""
        steps: dict[str, Callable[[], None]] = {
            "record and synchronize": self.record,
            "wait": self.wait,
            "one copy": partial(self.copies, 1, gap=False),
            "many copies": partial(self.copies, 16, gap=False),
            "many copies with gaps": partial(self.copies, 16, gap=True),
            "fetch 1 number": partial(self.fetch, 1),
            "fetch 5000 numbers": partial(self.fetch, 5000),
        }
        for fragment, direction, scattered in product(FRAGMENTS, Direction, (False, True)):
            name = f"{direction.value} of {fragment} B, {'scattered' if scattered else 'in rows'}"
            steps[name] = partial(self.move, fragment, direction, scattered=scattered)
        return steps | {"a proof": partial(prove, self.gpu)}

    def record(self) -> None:
        commands, event = self.gpu.commands(), self.gpu.event()
        commands.record(self.stream, event)
        commands.synchronize(event)
        commands.run(NO_GAPS)
        assert event.query()

    def wait(self) -> None:
        commands = self.gpu.commands()
        for _ in range(50):  # events that nobody else keeps
            event = self.gpu.event()
            commands.record(self.stream, event)
            commands.wait(self.other, event)
        commands.run(NO_GAPS)
        self.other.synchronize()

    def copies(self, count: int, *, gap: bool) -> None:
        self.back[:] = 0
        size = BYTES // count
        offsets = np.arange(count, dtype=np.int64) * size
        sizes = np.full_like(offsets, size)
        host, device, back = int(self.host.ctypes.data), self.device.address, int(self.back.ctypes.data)
        between = Gap(3 * size, self.other, self.gpu.event(), self.gpu.event()) if gap else None
        commands = self.gpu.commands()
        commands.copy(self.stream, device + offsets, host + offsets, sizes, between)
        commands.copy(self.stream, back + offsets, device + offsets, sizes, between)
        self.finish(commands, gaps=gap)
        assert np.array_equal(self.host, self.back), "other bytes came back"

    def fetch(self, count: int) -> None:
        self.back[:] = 0
        commands = self.gpu.commands()
        commands.fetch(self.stream, self.device, self.host.view(np.int64)[:count])
        ends = [[int(self.back.ctypes.data)], [self.device.address], [8 * count]]
        commands.copy(self.stream, *np.array(ends, dtype=np.int64))
        self.finish(commands)
        assert np.array_equal(self.host[: 8 * count], self.back[: 8 * count]), "other bytes came back"
        assert not self.back[8 * count :].any(), "too many bytes came"

    def move(self, fragment: int, direction: Direction, *, scattered: bool) -> None:
        """Move blocks 2, 0 and 3 between a region and rows, of which the scattered ones are 1, 4 and 5."""
        cache = CudaCache([CudaRegion(self.device.address, fragment, fragment)], blocks=4)
        blocks, rows = [2, 0, 3], [1, 4, 5] if scattered else [0, 1, 2]
        tiles = tiling(cache)
        numbers = tiles.table.copy()
        table, index, there = (self.gpu.allocate(size) for size in (numbers.nbytes, 48, 6 * fragment))
        numbers[0] -= table.address // tiles.element_bytes
        pairs = np.array([*zip(blocks, [1, 4, 5], strict=True)], dtype=np.int64)
        commands = self.gpu.commands()
        self.bring(commands, table.address, numbers)
        self.bring(commands, index.address, pairs)
        to_rows = direction is Direction.STORE
        source, to = (self.device.address, there.address) if to_rows else (there.address, self.device.address)
        self.bring(commands, source, self.host[: 6 * fragment])
        self.bring(commands, to, np.zeros(4 * fragment, dtype=np.uint8))
        self.gpu.mover(direction, tiles, table)(
            commands,
            self.stream,
            index,
            first=0,
            pairs=3,
            rows_at=there.address,
            row_bytes=fragment,
            scattered=scattered,
        )
        size = 6 * fragment if to_rows else 4 * fragment
        commands.copy(self.stream, *np.array([[int(self.back.ctypes.data)], [to], [size]], dtype=np.int64))
        self.finish(commands)
        found, sent = self.back[:size].reshape(-1, fragment), self.host[: 6 * fragment].reshape(-1, fragment)
        ends = (rows, blocks) if to_rows else (blocks, rows)
        assert np.array_equal(found[ends[0]], sent[ends[1]]), "other bytes came back"

    def bring(self, commands: Any, to: int, content: Any) -> None:
        """Copy something to the device, out of pinned memory that is kept."""
        pinned = self.gpu.allocate_pinned(content.nbytes)
        pinned[:] = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
        self._pinned.append(pinned)
        commands.copy(self.stream, *np.array([[to], [int(pinned.ctypes.data)], [pinned.nbytes]], dtype=np.int64))

    def finish(self, commands: Any, *, gaps: bool = False) -> None:
        """Issue, and wait until all of it has run."""
        commands.run(np.array([gaps], dtype=np.int64))
        self.stream.synchronize()
        self._pinned.clear()


def run(steps: Steps) -> int:
    """Run all steps, and return how many failed."""
    failed = 0
    for name, step in steps.all().items():
        _tell(f"{name}: ")
        try:
            step()
        except Exception as error:
            failed += 1
            _tell(f"FAILED, {type(error).__name__}: {error}\n")
        else:
            _tell("ok\n")
    _tell(f"{failed} of {len(steps.all())} steps failed\n")
    return failed


def _tell(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main() -> int:
    in_c = "--python" not in sys.argv
    triton, torch = importlib.import_module("triton"), importlib.import_module("torch")
    _tell(f"Triton {triton.__version__}, torch {torch.__version__}, CUDA {torch.version.cuda}, in C: {in_c}\n")
    gpu = TorchGpu(in_c=in_c)
    assert gpu.in_c == in_c
    return run(Steps(gpu))


if __name__ == "__main__":
    sys.exit(main())
