"""vLLM's KV cache groups as kvtide's attention groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import vllm.v1.kv_cache_interface as cache_interface

from kvtide.core import ChunkedLocal, FullAttention, Geometry, Group, SlidingWindow, StateSpace
from kvtide.errors import ConfigError
from kvtide.vllm import versions
from kvtide.vllm.executors import refuse_unheard_ranks
from kvtide.vllm.replicas import Replicas, replicas_of

NONE_ALIKE = Replicas()


@dataclass(frozen=True, slots=True)
class Layout:
    """What the scheduler side knows about the KV cache."""

    geometry: Geometry
    group_ids: tuple[int, ...]
    """vLLM's id of each of kvtide's groups: those that take part in prefix caching."""
    boundary_tokens: int
    """Hits are multiples of this."""
    hash_tokens: int
    """Tokens of one of vLLM's block hashes; a block of a group has one or more."""
    drops_last_block: bool
    """Speculative decoding computes the last block of each hit again."""
    reserves_room: bool = True
    """vLLM admits a request only when there is room for its whole prompt (`scheduler_reserve_full_isl`)."""
    replicas: Replicas = NONE_ALIKE
    keeps_blocks: bool = False
    """Requests give up no block as long as they run."""
    in_step_with_others: bool = False
    """Other engines wait for each of this one's steps (experts over data-parallel engines)."""
    slots_turn_out: bool = False
    """How many host slots there are, the workers find out when the first blocks are stored."""


def read_layout(vllm_config: Any, kv_cache_config: Any) -> Layout:
    """Translate vLLM's configuration, or say what kvtide cannot work with."""
    refuse_unheard_ranks(vllm_config)
    sizes, boundary, hash_tokens = versions.group_block_tokens(vllm_config, kv_cache_config)
    ids = versions.cacheable_group_ids(kv_cache_config)
    if any(versions.is_host_resident(kv_cache_config.kv_cache_groups[index]) for index in ids):
        raise ConfigError("kv_connector", "HiSparse", "a KV cache whose blocks are all on the device")
    groups = tuple(_group(kv_cache_config.kv_cache_groups[index].kv_cache_spec, sizes[index]) for index in ids)
    ranks = vllm_config.parallel_config.world_size
    replicas = replicas_of(vllm_config, kv_cache_config)
    geometry = Geometry(
        groups=groups,
        block_bytes=versions.block_bytes(kv_cache_config),
        device_blocks=kv_cache_config.num_blocks - 1,  # block 0 is the null block
        ranks=ranks,
        parts=ranks // replicas.sharing if replicas.sharing > 1 else None,
        step_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
    )
    drops = versions.drops_last_block(vllm_config)
    reserves = vllm_config.scheduler_config.scheduler_reserve_full_isl
    keeps = versions.gives_up_blocks_at_the_end(kv_cache_config)
    others = vllm_config.parallel_config.data_parallel_size > 1
    return Layout(geometry, ids, boundary, hash_tokens, drops, reserves, replicas, keeps, others)


def _group(spec: Any, block_tokens: int) -> Group:
    """Return the rule of one group. All layers of a group have the same rule."""
    found = {_rule(layer, block_tokens) for layer in versions.layer_specs(spec)}
    if len(found) != 1:
        raise ConfigError("kv_connector", type(spec).__name__, "layers of one group to have one attention rule")
    return found.pop()


def _rule(spec: Any, block_tokens: int) -> Group:
    if isinstance(spec, cache_interface.MambaSpec):
        return StateSpace(block_tokens)
    if isinstance(spec, cache_interface.SlidingWindowSpec):  # MLA ones too
        return SlidingWindow(block_tokens, spec.sliding_window)
    if isinstance(spec, cache_interface.ChunkedLocalAttentionSpec):
        return ChunkedLocal(block_tokens, spec.attention_chunk_size)
    if type(spec).__name__ != "RSWASpec" and isinstance(spec, cache_interface.FullAttentionSpec):  # MLA, sinks too
        return FullAttention(block_tokens)
    raise ConfigError(
        "kv_connector",
        type(spec).__name__,
        "a model of full, sliding-window, chunked-local or state-space attention layers",
    )
