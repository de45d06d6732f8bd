"""Tiers below host memory on vLLM: how they are opened, and all that the bytes of a block depend on (F23)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import vllm.v1.core.kv_cache_utils as cache_utils
from vllm.version import __version__

from kvtide.copy.packing import NAMESPACE_PART
from kvtide.copy.slot_places import SlotPlaces
from kvtide.core.share import Share
from kvtide.errors import ConfigError
from kvtide.tiers import Namespace, TierConfig, hashing_part, unstable_keys
from kvtide.tiers.stack import TierStack, open_stack
from kvtide.vllm import versions
from kvtide.vllm.settings import draft_model_of, settings_of, shortened, text_of
from kvtide.vllm.weights import weights_part

TEXT_CHARS_MAX = 400
"""Of parts that name every layer: large models have many."""

OpenTiers = Callable[[int, npt.NDArray[np.uint8], Callable[[], str], Share, SlotPlaces | None], TierStack | None]
"""Opens the tiers of a rank, from the rank, its host slots as rows of bytes, what says what is where in a slot, which
of the blocks in these slots are the rank's own, and where blocks are if they are packed (None: they are not).
"""


def no_tiers(
    rank: int, memory: npt.NDArray[np.uint8], layout: Callable[[], str], share: Share, places: SlotPlaces | None
) -> None:
    """Open nothing: there is nothing below host memory."""


def tiers_opener(
    configs: tuple[TierConfig, ...], vllm_config: Any, kv_cache_config: Any, block_bytes: int
) -> OpenTiers:
    """Return what opens the tiers of a rank."""
    if not configs:
        return no_tiers
    refuse_unstable_keys("tiers", [config.type for config in configs], vllm_config)

    def open_tiers(
        rank: int, memory: npt.NDArray[np.uint8], layout: Callable[[], str], share: Share, places: SlotPlaces | None
    ) -> TierStack:
        namespace = namespace_of(vllm_config, kv_cache_config, block_bytes, layout())
        if places is not None:
            namespace = namespace.with_setting(NAMESPACE_PART)
        return open_stack(configs, namespace, rank, memory, share, places=places)

    return open_tiers


def refuse_unstable_keys(option: str, value: object, vllm_config: Any) -> None:
    """Refuse what outlives this process if the next one computes other keys, or reads bytes otherwise (F23)."""
    why = unstable_keys(
        vllm_config.cache_config.prefix_caching_hash_algo,
        os.environ.get("PYTHONHASHSEED"),
        has_fixed_seed=hasattr(cache_utils, "DEFAULT_NONE_HASH_SEED"),
    )
    if why is not None:
        raise ConfigError(option, value, f"keys that outlive a process; {why}")
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):  # up to 0.27
        raise ConfigError(
            "calculate_kv_scales", True, f"false beside {option}: each process measures scales of its own for its KV"
        )


def namespace_of(vllm_config: Any, kv_cache_config: Any, block_bytes: int, layout: str) -> Namespace:
    """Return the namespace of this server's blocks, as its configuration was resolved. Only ranks differ.

    `layout`: where the numbers of each layer are in a slot (`kv_tensors.layout_of`), for that is where truth is known.
    """
    model = vllm_config.model_config
    draft = draft_model_of(vllm_config)
    weights = weights_part(model, vllm_config.load_config)
    if draft is not None:
        load = getattr(vllm_config.speculative_config, "draft_load_config", None) or vllm_config.load_config
        weights += f"; draft: {weights_part(draft, load)}"
    return Namespace(
        model=str(model.model),
        weights=weights,
        dtype=f"{vllm_config.cache_config.cache_dtype} of {model.dtype}",
        layout=shortened(layout, TEXT_CHARS_MAX),
        groups=shortened(_groups_part(vllm_config, kv_cache_config), TEXT_CHARS_MAX),
        block_bytes=block_bytes,
        attention=shortened(f"vllm {__version__}, {backends_of(vllm_config, kv_cache_config)}", TEXT_CHARS_MAX),
        hashing=hashing_part(
            vllm_config.cache_config.prefix_caching_hash_algo,
            os.environ.get("PYTHONHASHSEED"),
            sys.version_info[:2],
        ),
        world=vllm_config.parallel_config.world_size,
        settings=settings_of(vllm_config),
    )


def _groups_part(vllm_config: Any, kv_cache_config: Any) -> str:
    """Return the groups of layers, and the sizes of their blocks."""
    _, _, hash_tokens = versions.group_block_tokens(vllm_config, kv_cache_config)
    groups = [
        f"{type(group.kv_cache_spec).__name__} of {group.kv_cache_spec.block_size}: {','.join(group.layer_names)}"
        for group in kv_cache_config.kv_cache_groups
    ]
    return "; ".join([f"hashes of {hash_tokens}", *groups])


def backends_of(vllm_config: Any, kv_cache_config: Any) -> str:
    """Return the attention backend of each layer, as the loaded model says, or else as it was asked for."""
    layers = getattr(vllm_config.compilation_config, "static_forward_context", {})
    names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
    found: dict[str, list[str]] = {}
    for name in names:
        backend = getattr(layers.get(name), "get_attn_backend", None)
        found.setdefault(asked_backend(vllm_config) if backend is None else backend().get_name(), []).append(name)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{backend}: {','.join(of)}" for backend, of in found.items())


def asked_backend(vllm_config: Any) -> str:
    """Return the attention backend that somebody has asked for."""
    asked = getattr(vllm_config, "attention_config", None)
    backend = getattr(asked, "backend", None)
    kinds = getattr(asked, "backend_per_kind", None)
    default = os.environ.get("VLLM_ATTENTION_BACKEND", "default")
    return f"{getattr(backend, 'name', backend) or default}{text_of(kinds) if kinds else ''}"
