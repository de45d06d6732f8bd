"""Whether blocks are packed on the host (the option `packing`), and what host memory a block takes then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import vllm.v1.kv_cache_interface as cache_interface

from kvtide.copy.packing import PLAIN_TILE_BYTES
from kvtide.copy.packing.codec import has_compiled
from kvtide.copy.unpacked import packed_bytes_with_row
from kvtide.errors import ConfigError
from kvtide.vllm import versions
from kvtide.vllm.layout import Layout
from kvtide.vllm.options import Options


def with_packing(layout: Layout, options: Options, kv_cache_config: Any) -> tuple[Layout, Options]:
    """Decide, and return what the rest has to know of it. The same in the scheduler and in every worker (F22).

    Raises ConfigError where packing is asked for and cannot be done.
    """
    if options.packing == "off":
        return layout, options
    trial = options.packing == "auto"
    why_not = next(_in_the_way(layout, kv_cache_config), None)
    if trial and why_not is None:
        why_not = next(_not_certain(layout, options, kv_cache_config), None)
    if why_not is not None:
        if not trial:
            raise ConfigError("packing", "on", f"{why_not}; write off, or auto")
        return layout, replace(options, packing_off=why_not)
    packed = replace(layout.geometry, host_block_bytes=packed_bytes_with_row(layout.geometry.block_bytes))
    copying = replace(options.copying, packed=True, trial=trial)
    return replace(layout, geometry=packed, slots_turn_out=trial), replace(options, copying=copying)


def _not_certain(layout: Layout, options: Options, kv_cache_config: Any) -> Iterator[str]:
    """Yield what keeps `auto` from trying: each rank decides for itself, so nobody else may use its memory."""
    if options.node is not None:
        yield "host memory of this engine, not of a node, where all engines have to do the same; or write on"
    if layout.replicas.sharing > 1:
        yield f"ranks that share no host memory: {layout.replicas.sharing} of these hold the same KV; or write on"
    for group in kv_cache_config.kv_cache_groups:
        for spec in versions.layer_specs(group.kv_cache_spec):
            for size in _parts_bytes(spec):
                if size % PLAIN_TILE_BYTES:
                    yield f"heads of a multiple of {PLAIN_TILE_BYTES} bytes in a block, not of {size}; or write on"


def _parts_bytes(spec: Any) -> Iterator[int]:
    """Yield what fragments are made of, however vLLM lays out a block. Where they are others, workers refuse `on`."""
    states = getattr(spec, "num_states", spec.block_size)
    for head_size in (spec.head_size, getattr(spec, "head_size_v", 0) or 0):
        yield int(states * head_size * spec.dtype.itemsize)
    yield spec.page_size_bytes  # which may be padded


def packing_text(options: Options) -> str:
    """Say for the log what was decided. Empty: nobody has asked."""
    if options.packing == "off":
        return ""
    if options.packing_off is not None:
        return f"packing is off, which needs {options.packing_off}; "
    return "packing is on; " if not options.copying.trial else "whether to pack, the first blocks will show; "


def _in_the_way(layout: Layout, kv_cache_config: Any) -> Iterator[str]:
    """Yield what packing cannot do with, as what was expected instead."""
    for group in kv_cache_config.kv_cache_groups:
        for spec in versions.layer_specs(group.kv_cache_spec):
            if isinstance(spec, cache_interface.MambaSpec):
                yield "a model without state-space layers, whose states do not pack"
            elif getattr(spec, "dtype", None) is not torch.bfloat16:
                yield f"a KV cache of bfloat16, not of {getattr(spec, 'dtype', 'no dtype')}: others hardly pack"
    if layout.geometry.block_bytes % PLAIN_TILE_BYTES:
        yield f"blocks of a multiple of {PLAIN_TILE_BYTES} bytes, not of {layout.geometry.block_bytes}"
    if not versions.on_gpu() and not has_compiled():
        yield "numba to be installed, which packs on a CPU"
