"""Rates measured on this machine, in about a second: copies in host memory, and what its GPU can do if it has one."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kvtide.copy.arena import HostArena
from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import CudaCache, CudaRegion
from kvtide.copy.cuda.measure import measure
from kvtide.copy.cuda.torch_gpu import TorchGpu
from kvtide.copy.move import BlockMover
from kvtide.copy.regions import DeviceCache, regions_of
from kvtide.core.messages import Copy
from kvtide.errors import KVTideError
from kvtide.traces.model import DEFAULT_MODEL, Model
from kvtide.traces.rates import Rates, Sourced

_LAYERS, _BLOCKS, _FRAGMENT_BYTES = 32, 64, 32 << 10
"""64 MiB of KV, cut as a model of 32 layers cuts it."""
_REPEATS = 5
_MATRIX = 8192
_PRODUCTS = 20
_PREFILL_SHARE = 0.76
"""Share of the speed of large matrix products that a long prefill reaches: on an H200 575 of 754 TFLOPS."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes per second; without a GPU only those of the host."""

    host_store_bytes_per_s: float
    host_load_bytes_per_s: float
    gpu: str | None = None
    store_bytes_per_s: float = 0.0
    load_bytes_per_s: float = 0.0
    flops: float = 0.0
    """Of large matrix products in 16 bits."""

    @property
    def host_copy(self) -> Sourced:
        """The slower direction in host memory."""
        slower = min(self.host_store_bytes_per_s, self.host_load_bytes_per_s)
        return Sourced(slower, "measured", "copies in host memory on this machine; not used, a GPU copies by itself")

    @property
    def text(self) -> str:
        """What was measured, and what was not."""
        host = (
            f"copies in host memory {self.host_store_bytes_per_s / 1e9:.1f} GB/s (store) and "
            f"{self.host_load_bytes_per_s / 1e9:.1f} GB/s (load)"
        )
        if self.gpu is None:
            return (
                f"measured on this machine: {host}; there is no GPU that torch can use: the rates of link and prefill "
                f"are not measured"
            )
        return (
            f"measured on this machine: {host}; {self.gpu}: {self.store_bytes_per_s / 1e9:.1f} GB/s to the host, "
            f"{self.load_bytes_per_s / 1e9:.1f} GB/s from it, {self.flops / 1e12:.0f} TFLOPS of matrix products "
            f"(the prefill rate is derived from that; no prefill was run)"
        )


def measure_machine() -> Measured:
    """Measure what is here."""
    store, load = (_host_copies(direction) for direction in (Direction.STORE, Direction.LOAD))
    host = Measured(store, load)
    try:
        gpu = TorchGpu()
    except KVTideError:
        return host
    torch = importlib.import_module("torch")
    memory = gpu.allocate(1 << 20)
    cache = CudaCache([CudaRegion(memory.address, 4096, 4096, memory)], blocks=1)
    rates = measure(gpu, cache)
    return replace(
        host,
        gpu=str(torch.cuda.get_device_name(0)),
        store_bytes_per_s=rates.store * 1e9,
        load_bytes_per_s=rates.load * 1e9,
        flops=_matrix_products(torch),
    )


def measured_rates(rates: Rates, measured: Measured, model: Model) -> Rates:
    """Put what was measured in place of what was derived: of the link and of computing, where there is a GPU."""
    if measured.gpu is None:
        return rates
    parameters = model.active_parameters or DEFAULT_MODEL.active_parameters
    assert parameters is not None
    how = (
        f"{_PREFILL_SHARE:.0%} of {measured.flops / 1e12:.0f} TFLOPS measured on the {measured.gpu}, "
        f"{parameters / 1e9:.3g}B parameters"
    )
    return replace(
        rates,
        load_bytes_per_s=Sourced(measured.load_bytes_per_s, "measured", f"one large copy on the {measured.gpu}"),
        store_bytes_per_s=Sourced(measured.store_bytes_per_s, "measured", f"one large copy on the {measured.gpu}"),
        prefill_tokens_per_s=Sourced(measured.flops * _PREFILL_SHARE / (2 * parameters), "derived", how),
    )


def _host_copies(direction: Direction) -> float:
    """Return bytes per second of our own copies between arrays, blocks in no order."""
    array = np.zeros((_LAYERS, _BLOCKS, _FRAGMENT_BYTES), np.uint8)
    cache = DeviceCache(regions_of(array, 1), blocks=_BLOCKS)
    order = tuple(block * 37 % _BLOCKS for block in range(_BLOCKS))
    with HostArena(_BLOCKS, cache.block_bytes) as arena:
        copy = Copy(0, order, tuple(range(_BLOCKS)))
        move = partial(BlockMover(cache, arena).move, direction, copy)
        move()  # touches all pages
        seconds = min(_timed(move) for _ in range(_REPEATS))
    return array.nbytes / seconds


def _matrix_products(torch: Any) -> float:
    left = torch.randn(_MATRIX, _MATRIX, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        for _ in range(_PRODUCTS):
            torch.matmul(left, left)
        torch.cuda.synchronize()

    run()
    return 2 * _MATRIX**3 * _PRODUCTS / min(_timed(run) for _ in range(_REPEATS))


def _timed(run: Callable[[], None]) -> float:
    begin_s = time.perf_counter()
    run()
    return max(1e-9, time.perf_counter() - begin_s)
