"""Which ranks hold the same KV: latents of MLA, and KV heads of which there are fewer than ranks (F27).

vLLM gives the same head to ranks that follow one another, so those that hold the same are neighbours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import vllm.v1.kv_cache_interface as cache_interface

from kvtide.vllm import versions
from kvtide.vllm.settings import draft_model_of

_NUMBER_OF_HEADS = re.compile(r"(kv|key_value)_heads?|heads?_kv|heads_in_group|query_group|attention_groups")
"""What a model's `config.json` calls its number of KV heads. Some have another number for other layers."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """So many ranks, one after the other, hold the same KV."""

    ranks: int = 1
    apart: str | None = None
    """Why each of them keeps a copy of its own on the host. None: they share one."""

    @property
    def sharing(self) -> int:
        """How many ranks share one copy."""
        return self.ranks if self.apart is None else 1

    def __str__(self) -> str:
        """Say it for the log. Empty where no rank holds what another one has."""
        if self.ranks == 1:
            return ""
        if self.apart is None:
            return f", one copy for every {self.ranks} ranks, which hold the same"
        return f", a copy on each of {self.ranks} ranks that hold the same: {self.apart}"


def replicas_of(vllm_config: Any, kv_cache_config: Any) -> Replicas:
    """Return how many ranks hold the same, by what every process of the engine knows: all of them agree on it."""
    parallel = vllm_config.parallel_config
    if parallel.tensor_parallel_size == 1:
        return Replicas()
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in versions.layer_specs(group.kv_cache_spec)]
    counts = [_of_layer(spec, vllm_config) for spec in specs] or [1]
    spread = getattr(parallel, "decode_context_parallel_size", 1)
    most = max(counts) // spread
    if most <= 1:
        return Replicas()
    if spread > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        return Replicas(most, "with context parallel, others hold other tokens")
    same = math.gcd(*counts)
    if same == 1:
        return Replicas(most, "layers of this model are split over ranks in different ways")
    return Replicas(same, elsewhere(parallel))


def elsewhere(parallel: Any) -> str | None:
    """Say why ranks have no memory in common. None: they have."""
    if parallel.distributed_executor_backend == "ray":
        return "Ray may place ranks on any machine"
    return None if parallel.local_world_size == parallel.world_size else "ranks are on other machines"


def _of_layer(spec: Any, vllm_config: Any) -> int:
    """Return how many ranks hold the same KV of a layer. Where that is not certain: one."""
    ranks: int = vllm_config.parallel_config.tensor_parallel_size
    if not isinstance(spec, cache_interface.AttentionSpec):
        return 1  # states are split like the layer's heads
    if _is_latent(spec):
        shards = getattr(spec, "max_tp_shards", 1)  # before 0.32 vLLM did not say, and had no others
        return 1 if shards is None else max(1, ranks // shards)
    heads = vllm_config.model_config.get_total_num_kv_heads()
    if heads >= ranks or ranks % heads or spec.num_kv_heads != 1:
        return 1
    return ranks // heads if _splits_alike(vllm_config, heads) else 1


def _splits_alike(vllm_config: Any, heads: int) -> bool:
    """Whether all layers have so many KV heads over the same ranks, those of a model that guesses tokens too."""
    draft, parallel = draft_model_of(vllm_config), vllm_config.parallel_config
    if draft is not None:
        draft_ranks = getattr(vllm_config.speculative_config, "draft_tensor_parallel_size", None)
        if draft_ranks not in (None, parallel.tensor_parallel_size) or not _heads(draft.hf_text_config) <= {heads}:
            return False
    return _heads(vllm_config.model_config.hf_text_config) <= {heads}


def _is_latent(spec: Any) -> bool:
    kinds = tuple(
        kind
        for name in ("MLAAttentionSpec", "SlidingWindowMLASpec")
        if (kind := getattr(cache_interface, name, None)) is not None
    )
    return isinstance(spec, kinds)


def _heads(hf_config: Any) -> set[object]:
    """Return all numbers of KV heads that a model's configuration names, for whichever of its layers."""
    parts = hf_config.to_dict() if hasattr(hf_config, "to_dict") else vars(hf_config)
    return set(_found(parts))


def _found(part: object, is_number: bool = False) -> Iterator[object]:
    if isinstance(part, dict):
        for name, value in part.items():
            yield from _found(value, bool(_NUMBER_OF_HEADS.search(str(name))))
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _found(value, is_number)
    elif is_number and part is not None:
        yield part
