"""A short measurement at start: what one large copy reaches, and whether copies of one fragment come near it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import CudaCache
from kvtide.copy.cuda.gpu import Addresses, Gpu, Stream
from kvtide.copy.cuda.issuing import NO_GAPS

_SAMPLE_BYTES = 32 << 20
_REPEATS = 10
_DIRECT_BYTES_MIN = 128 << 10
"""Fragments below this are not worth measuring: 80% at 64 KiB on an H200."""
_DIRECT_SHARE_MIN = 0.95


class Route(enum.Enum):
    """How blocks get across."""

    STAGED = "staged"
    """Gathered in GPU memory by a kernel, then copied in one piece; and back."""
    DIRECT = "direct"
    """Fragment by fragment: they are large enough."""


@dataclass(frozen=True, slots=True)
class Rates:
    """GB/s of one large copy, which no route exceeds, and of copies of one fragment each (0: not measured)."""

    store: float = 0.0
    load: float = 0.0
    store_fragments: float = 0.0
    load_fragments: float = 0.0

    @property
    def route(self) -> Route:
        """The better route: fragment by fragment costs no kernel and no staging, if it is about as fast."""
        near = self.store_fragments >= _DIRECT_SHARE_MIN * self.store
        return Route.DIRECT if near and self.load_fragments >= _DIRECT_SHARE_MIN * self.load > 0 else Route.STAGED


def measure(gpu: Gpu, cache: CudaCache) -> Rates:
    """Measure on memory of its own; takes about 20 ms."""
    device, host = gpu.allocate(_SAMPLE_BYTES), gpu.allocate_pinned(_SAMPLE_BYTES)
    host_address = int(host.ctypes.data)
    stream = gpu.stream()

    def rate(direction: Direction, size: int) -> float:
        offsets = np.arange(0, _SAMPLE_BYTES - size + 1, size, dtype=np.int64)
        # Another order on one side, or the driver could join them into one.
        ends = device.address + offsets[::-1], host_address + offsets
        to, source = ends[::-1] if direction is Direction.STORE else ends
        return max(_gbps(gpu, stream, to, source, np.full_like(offsets, size)) for _ in range(_REPEATS))

    store, load = rate(Direction.STORE, _SAMPLE_BYTES), rate(Direction.LOAD, _SAMPLE_BYTES)
    fragment = min(cache.fragment_bytes_min, _SAMPLE_BYTES // 2)
    if fragment < _DIRECT_BYTES_MIN:
        return Rates(store, load)
    return Rates(store, load, rate(Direction.STORE, fragment), rate(Direction.LOAD, fragment))


def _gbps(gpu: Gpu, stream: Stream, to: Addresses, source: Addresses, sizes: Addresses) -> float:
    begin, end = gpu.event(timing=True), gpu.event(timing=True)
    commands = gpu.commands()
    commands.record(stream, begin)
    commands.copy(stream, to, source, sizes)
    commands.record(stream, end)
    commands.run(NO_GAPS)
    end.synchronize()
    return float(sizes.sum()) / max(begin.elapsed_time(end), 1e-6) / 1e6
