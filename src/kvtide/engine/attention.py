"""Grouped-query attention of one chunk of a request over its gathered KV."""

from __future__ import annotations

import numpy as np

from kvtide.engine.arrays import Floats

TILE_TOKENS = 64
"""Queries taken together. Small enough that their scores stay in the processor's cache, and that little is
computed beyond the causal diagonal."""


def attend(queries: Floats, keys: Floats, values: Floats, *, start: int, keys_start: int, window: int | None) -> Floats:
    """Return `[token, head, dim]` for `queries` `[token, head, dim]`, the first of which is at position `start`.

    `keys` and `values` are `[token, kv head, dim]` from position `keys_start` to the chunk's end.
    """
    out = np.empty_like(queries)
    for begin in range(0, len(queries), TILE_TOKENS):
        end = min(begin + TILE_TOKENS, len(queries))
        first = 0 if window is None else max(0, start + begin - window + 1 - keys_start)
        last = start + end - keys_start
        mask = _mask(end - begin, last - first, window)
        out[begin:end] = _attend_tile(queries[begin:end], keys[first:last], values[first:last], mask)
    return out


def _mask(num_queries: int, num_keys: int, window: int | None) -> Floats | None:
    """Return what to add to scores `[query, 1, key]` where queries are the last of the keys: 0 or -inf."""
    if num_queries == 1:
        return None  # one query sees all keys it was given
    age = np.arange(num_keys - num_queries, num_keys)[:, None] - np.arange(num_keys)
    seen = age >= 0 if window is None else (age >= 0) & (age < window)
    return np.where(seen, 0.0, -np.inf)[:, None, :]


def _attend_tile(queries: Floats, keys: Floats, values: Floats, mask: Floats | None) -> Floats:
    tokens, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    shared = heads // kv_heads
    rows = queries.reshape(tokens, kv_heads, shared, dim).transpose(1, 0, 2, 3)
    scores = rows.reshape(kv_heads, tokens * shared, dim) @ keys.transpose(1, 2, 0)
    if mask is not None:
        by_token = scores.reshape(kv_heads, tokens, shared, -1)
        by_token += mask
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed = scores @ values.transpose(1, 0, 2)
    mixed /= scores.sum(axis=-1, keepdims=True)
    out: Floats = mixed.reshape(kv_heads, tokens, shared, dim).transpose(1, 0, 2, 3)
    return out.reshape(tokens, heads, dim)
