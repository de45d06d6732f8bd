"""How much memory a GPU has left for KV beside the weights."""

from __future__ import annotations

from kvtide.errors import ConfigError
from kvtide.traces.gpus import Gpu
from kvtide.traces.model import DEFAULT_MODEL, Model
from kvtide.traces.rates import Kind, Sourced
from kvtide.units import size_text

USED_SHARE = 0.9
"""Of a GPU's memory: vLLM's usual --gpu-memory-utilization."""
WORKING_BYTES = 2 << 30
"""Activations and graphs of each GPU, about what vLLM takes with its usual settings."""


def kv_memory(gpu: Gpu, model: Model, gpus: int, *, default: bool = False) -> Sourced:
    """Return the bytes that all GPUs together have for KV, the weights being split among them."""
    weight_bytes = model.weight_bytes or DEFAULT_MODEL.weight_bytes
    assert weight_bytes is not None
    usable = USED_SHARE * gpu.memory_bytes - WORKING_BYTES
    left = gpus * usable - weight_bytes
    if left <= 0:
        needed = int(weight_bytes // usable) + 1
        raise ConfigError(
            "--gpus",
            gpus,
            f"at least {needed} of the {gpu.name}, for {size_text(weight_bytes)} of weights (or give --device)",
        )
    whose = "" if model.weight_bytes else f" ({DEFAULT_MODEL.name}: {model.name} tells none)"
    each = f"{gpus} times " if gpus > 1 else ""
    kind: Kind = "default" if default else "derived"
    return Sourced(
        left,
        kind,
        f"{each}{USED_SHARE:.0%} of the {size_text(gpu.memory_bytes)} of the {gpu.name}, less "
        f"{size_text(WORKING_BYTES)} of activations, less {size_text(weight_bytes)} of weights{whose}",
    )
