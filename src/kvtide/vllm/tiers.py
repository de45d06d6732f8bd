"""Tiers below host memory on vLLM: all that the bytes of a block depend on (F23)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import vllm.v1.core.kv_cache_utils as cache_utils
from vllm.version import __version__

from kvtide.errors import ConfigError
from kvtide.tiers import Namespace, TierConfig, hashing_part, unstable_keys

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.gguf", "config.json")
SAMPLES, SAMPLE_BYTES = 16, 4096
"""Of each file of weights so many pieces are looked at: all of it would take minutes at every start."""


def refuse_unstable_keys(configs: Sequence[TierConfig], vllm_config: Any) -> None:
    """Refuse tiers that outlive this process if nobody will ever compute the same keys again (F23)."""
    why = unstable_keys(
        vllm_config.cache_config.prefix_caching_hash_algo,
        os.environ.get("PYTHONHASHSEED"),
        has_fixed_seed=hasattr(cache_utils, "DEFAULT_NONE_HASH_SEED"),
    )
    if why is not None:
        raise ConfigError("tiers", [config.type for config in configs], f"keys that outlive a process; {why}")


def namespace_of(vllm_config: Any, kv_cache_config: Any, block_bytes: int) -> Namespace:
    """Return the namespace of this server's blocks. Ranks differ in their number only."""
    model = vllm_config.model_config
    groups = [
        f"{type(group.kv_cache_spec).__name__} of {group.kv_cache_spec.block_size}: {','.join(group.layer_names)}"
        for group in kv_cache_config.kv_cache_groups
    ]
    return Namespace(
        model=str(model.model),
        weights=weights_part(model, vllm_config.load_config),
        dtype=f"{vllm_config.cache_config.cache_dtype} of {model.dtype}",
        layout=_layout_part(kv_cache_config),
        groups="; ".join(groups),
        block_bytes=block_bytes,
        attention=f"vllm {__version__}, {_backend(vllm_config)}",
        hashing=hashing_part(
            vllm_config.cache_config.prefix_caching_hash_algo,
            os.environ.get("PYTHONHASHSEED"),
            sys.version_info[:2],
        ),
        world=vllm_config.parallel_config.world_size,
    )


def weights_part(model: Any, load: Any) -> str:
    """Return what the weights are: a revision where there is one, a fingerprint of the files, how they are loaded."""
    parts = [f"quantization {model.quantization}", f"load {getattr(load, 'load_format', 'auto')}"]
    commit = getattr(model.hf_config, "_commit_hash", None) or model.revision
    if commit:
        parts.append(f"revision {commit}")
    folder = Path(str(model.model))
    if folder.is_dir():
        parts.append(f"files {fingerprint(folder)}")
    if "dummy" in str(getattr(load, "load_format", "")):
        parts.append(f"seed {model.seed}")
    return ", ".join(parts)


def fingerprint(folder: Path) -> str:
    """Return a digest of the files of a model, from their names, their sizes and pieces of their content.

    Times are not looked at: copies of the same files on two servers must come to the same digest.
    """
    digest = blake2b(digest_size=16)
    for path in sorted(path for pattern in WEIGHT_FILES for path in folder.glob(pattern)):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for sample in range(SAMPLES):
                file.seek(sample * max(0, size - SAMPLE_BYTES) // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _layout_part(kv_cache_config: Any) -> str:
    """Return how layers lie in a block: strides do not depend on how many blocks there are."""
    blocks = kv_cache_config.num_blocks
    parts = []
    for tensor in kv_cache_config.kv_cache_tensors:
        stride = tensor.block_stride or tensor.size // blocks
        layers = getattr(tensor, "layers", None) or tensor.shared_by
        parts.append(f"{stride}: {','.join(layers)}")
    return "; ".join(parts)


def _backend(vllm_config: Any) -> str:
    backend = getattr(getattr(vllm_config, "attention_config", None), "backend", None)
    return str(getattr(backend, "name", backend or os.environ.get("VLLM_ATTENTION_BACKEND", "default")))
