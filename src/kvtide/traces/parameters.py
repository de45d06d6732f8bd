"""How many parameters a transformer has, from the shapes in its config.json.

Counted are matrices: attention, gated feed-forward layers, experts, embeddings. What is left out (norms, biases,
routers) is less than a percent. Who knows better says so (`--parameters`).
"""

from __future__ import annotations

from collections.abc import Mapping

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_EXPERTS_USED = ("num_experts_per_tok", "num_experts_per_token")
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def count_parameters(fields: Mapping[str, object]) -> tuple[float, float] | None:
    """Return all parameters, and those that one token is multiplied with; None if the fields do not tell."""
    width, expert_width = _number(fields, "intermediate_size"), _number(fields, "moe_intermediate_size")
    if not all(_number(fields, name) for name in _NEEDED) or not (width or expert_width):
        return None
    hidden, layers, _, vocabulary = (_number(fields, name) for name in _NEEDED)
    experts, used = _first(fields, _EXPERTS), _first(fields, _EXPERTS_USED)
    dense = 3 * hidden * width
    always = vocabulary * hidden * (1 if fields.get("tie_word_embeddings") is True else 2) + layers * _attention(fields)
    if not experts:
        return always + layers * dense, always + layers * dense
    dense_layers = _number(fields, "first_k_dense_replace")
    expert = 3 * hidden * (expert_width or width)
    shared = 3 * hidden * _number(fields, "shared_expert_intermediate_size")
    shared += expert * _number(fields, "n_shared_experts")
    always += dense_layers * dense + (layers - dense_layers) * shared
    sparse_layers = layers - dense_layers
    return always + sparse_layers * experts * expert, always + sparse_layers * min(experts, used or 1) * expert


def _attention(fields: Mapping[str, object]) -> float:
    """Return the parameters of one layer's attention."""
    hidden, heads = _number(fields, "hidden_size"), _number(fields, "num_attention_heads")
    if _number(fields, "kv_lora_rank"):
        return _latent_attention(fields, hidden, heads)
    head = _number(fields, "head_dim") or hidden / heads
    kv_heads = _number(fields, "num_key_value_heads") or heads
    return 2 * hidden * heads * head + 2 * hidden * kv_heads * head


def _latent_attention(fields: Mapping[str, object], hidden: float, heads: float) -> float:
    rank, rotary = _number(fields, "kv_lora_rank"), _number(fields, "qk_rope_head_dim")
    plain, values = _number(fields, "qk_nope_head_dim"), _number(fields, "v_head_dim")
    query_rank = _number(fields, "q_lora_rank")
    query_width = heads * (plain + rotary)
    queries = query_rank * (hidden + query_width) if query_rank else hidden * query_width
    return queries + hidden * (rank + rotary) + rank * heads * (plain + values) + heads * values * hidden


def _first(fields: Mapping[str, object], names: tuple[str, ...]) -> float:
    return next((value for value in (_number(fields, name) for name in names) if value), 0)


def _number(fields: Mapping[str, object], name: str) -> float:
    """Return a number of a configuration, 0 if it is not there."""
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
