"""Which layers of a config.json keep the KV of every token. Others have a window, a chunk or a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kvtide.units import size_text

_LISTS = ("layer_types", "layers_block_type")
"""Fields with a word for each layer."""
_FULL = ("full_attention", "attention", "indexed_attention")
"""Of tokens that an index leaves out, KV is kept too."""
_NOT_FULL = ("sliding_attention", "chunked_attention", "linear_attention", "mamba", "conv")
_SIGNS = (
    "attention_chunk_size",
    "attn_layer_period",
    "attn_type_list",
    "block_types",
    "full_attention_interval",
    "hybrid_override_pattern",
    "linear_attn_config",
)
"""Fields that only models have whose layers are not all full attention. So have fields that begin like this:"""
_BEGINNINGS = ("mamba_", "ssm_")


@dataclass(frozen=True, slots=True)
class PartlyFull:
    """Not all layers are full attention."""

    layers: int
    full: int | None
    """How many are. None: its configuration does not tell in a way that is read here."""
    told_by: str

    def text(self, model: str, bytes_per_token: int) -> str:
        """Say that all were taken as full, with so many bytes of KV per token."""
        taken = f"all {self.layers} layers of {model} are taken as full attention"
        if not self.full:
            return f"{taken}, and perhaps not all are ({self.told_by}): this may be too much KV (--bytes-per-token)"
        alone = size_text(bytes_per_token / self.layers * self.full)
        return (
            f"{taken}, and only {self.full} are ({self.told_by}): this is too much KV. "
            f"That of the {self.full} alone is --bytes-per-token '{alone}'"
        )


def partly_full(fields: Mapping[str, object], layers: int) -> PartlyFull | None:
    """Return how many of so many layers are full attention; None if nothing says that some are not."""
    for name in _LISTS:
        kinds = fields.get(name)
        if isinstance(kinds, list) and kinds:
            return _by_list(name, Counter(map(str, kinds)), layers)
    if _has_window(fields):
        every = fields.get("sliding_window_pattern")
        full = layers // every if type(every) is int and every > 0 else None
        return PartlyFull(layers, full, f"sliding_window {fields['sliding_window']}")
    signs = (name for name in fields if fields[name] and (name in _SIGNS or name.startswith(_BEGINNINGS)))
    return next((PartlyFull(layers, None, name) for name in signs), None)


def _by_list(name: str, kinds: Counter[str], layers: int) -> PartlyFull | None:
    others = {kind: count for kind, count in kinds.items() if kind not in _FULL}
    if not others:
        return None
    known = kinds.total() == layers and all(kind in _NOT_FULL for kind in others)
    full = layers - sum(others.values()) if known else None
    return PartlyFull(layers, full, f"{name}: {', '.join(f'{count} {kind}' for kind, count in others.items())}")


def _has_window(fields: Mapping[str, object]) -> bool:
    """Whether there is a window that is shorter than prompts may be."""
    window, longest = fields.get("sliding_window"), fields.get("max_position_embeddings")
    if type(window) is not int or window < 1 or fields.get("use_sliding_window") is False:
        return False
    return type(longest) is not int or window < longest
