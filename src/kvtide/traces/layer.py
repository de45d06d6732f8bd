"""The shape of a layer of a dense transformer, as far as its matrices go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and a gated feed-forward layer."""

    count: int
    """So many of them are behind each other."""
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int

    @property
    def parameters(self) -> int:
        """Of one layer."""
        return self.hidden * (2 * (self.heads + self.kv_heads) * self.head_size + 3 * self.mlp)


def dense_layer(fields: Mapping[str, object]) -> Layer | None:
    """Return the layer that a config.json tells; None if it tells none, or layers of another kind."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    numbers = [fields.get(name) for name in names]
    if any(type(number) is not int or number < 1 for number in numbers):
        return None
    if "kv_lora_rank" in fields or any("experts" in name and fields[name] for name in fields):
        return None
    count, hidden, heads, mlp = (number for number in numbers if isinstance(number, int))
    kv_heads, head_size = fields.get("num_key_value_heads"), fields.get("head_dim")
    return Layer(
        count,
        hidden,
        heads,
        kv_heads if isinstance(kv_heads, int) and kv_heads else heads,
        head_size if isinstance(head_size, int) and head_size else hidden // heads,
        mlp,
    )
