"""Rates measured on this machine, in a few seconds: copies in host memory, and what its GPU does if it has one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvtide.copy.arena import HostArena
from kvtide.copy.base import Direction
from kvtide.copy.move import BlockMover
from kvtide.copy.regions import DeviceCache, regions_of
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError, describe
from kvtide.traces.gpus import Gpu, gpu_named
from kvtide.traces.layer import Layer
from kvtide.traces.measured_gpu import PROMPT_TOKENS, MeasuredGpu, measure_gpu
from kvtide.traces.model import DEFAULT_MODEL, Model
from kvtide.traces.rates import Rates, Sourced

_LAYERS, _BLOCKS, _FRAGMENT_BYTES = 32, 64, 32 << 10
"""64 MiB of KV, cut as a model of 32 layers cuts it."""
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes per second of copies in host memory, and what the GPU does."""

    host_store_bytes_per_s: float
    host_load_bytes_per_s: float
    gpu: MeasuredGpu | None = None
    why_no_gpu: str = ""
    """In the words of what was tried."""

    @property
    def host_copy(self) -> Sourced:
        """The slower direction in host memory."""
        slower = min(self.host_store_bytes_per_s, self.host_load_bytes_per_s)
        return Sourced(slower, "measured", "copies in host memory on this machine; not used, a GPU copies by itself")

    @property
    def text(self) -> str:
        """What was measured, and what was not."""
        host = (
            f"measured on this machine: copies in host memory {self.host_store_bytes_per_s / 1e9:.1f} GB/s (store) and "
            f"{self.host_load_bytes_per_s / 1e9:.1f} GB/s (load)"
        )
        if self.gpu is None:
            return f"{host}; no GPU, so link and prefill are not measured ({self.why_no_gpu})"
        return f"{host}; {self.gpu.text}"


def measure_machine(layer: Layer | None = None) -> Measured:
    """Measure what is here; on a GPU with this layer, or that of the usual model."""
    store, load = (_host_copies(direction) for direction in (Direction.STORE, Direction.LOAD))
    layer = layer or DEFAULT_MODEL.layer
    assert layer is not None
    try:
        return Measured(store, load, measure_gpu(layer))
    except Exception as error:  # torch has many words for "no GPU", and for "no memory left": what is here is told
        return Measured(store, load, why_no_gpu=describe(error).splitlines()[0])


def gpu_here(found: MeasuredGpu, named: str | None) -> Gpu:
    """Return the GPU that was measured: with what is known of its kind, but its own memory.

    Of a kind that is not known, all numbers are those that were measured, and nobody knows its price.
    """
    try:
        known = gpu_named(found.name)
    except ConfigError:
        known = None
    if named is not None and gpu_named(named) is not known:
        raise ConfigError("--gpu", named, f"not to be used with --measure on another one, {found.name}")
    if known is not None:
        return replace(known, memory_bytes=found.memory_bytes)
    return Gpu(
        found.name,
        tflops=found.flops / 1e12,
        memory_bytes=found.memory_bytes,
        memory_gb_per_s=found.memory_bytes_per_s / 1e9,
        link_gb_per_s=found.load_bytes_per_s / 1e9,
        dollars_per_hour=None,
        sheet=f"measured on the {found.name}",
    )


def measured_rates(rates: Rates, found: MeasuredGpu, model: Model) -> Rates:
    """Put what was measured in place of what was derived: of the link and of computing."""
    link = f"one large copy on the {found.name}"
    return replace(
        rates,
        load_bytes_per_s=Sourced(found.load_bytes_per_s, "measured", link),
        store_bytes_per_s=Sourced(found.store_bytes_per_s, "measured", link),
        prefill_tokens_per_s=_prefill(found, model),
    )


def _prefill(found: MeasuredGpu, model: Model) -> Sourced:
    """Return it as measured if a layer of this model was run, and as derived from the speed of another one if not."""
    run = f"{PROMPT_TOKENS:,} tokens in {1000 * found.layer_s:.2f} ms through one"
    if model.layer == found.layer:
        how = f"{run} of the {found.layer.count} layers of {model.name}, by torch and no engine, on the {found.name}"
        return Sourced(found.prefill_tokens_per_s, "measured", how)
    parameters = model.active_parameters or DEFAULT_MODEL.active_parameters
    assert parameters is not None
    how = (
        f"{run} layer of {DEFAULT_MODEL.name} measured on the {found.name}, {found.flops / 1e12:.0f} TFLOPS; "
        f"{parameters / 1e9:.3g}B parameters"
    )
    return Sourced(found.flops / (2 * parameters), "derived", how)


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


def _timed(run: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    run()
    return max(1e-9, time.perf_counter() - begin_s)
