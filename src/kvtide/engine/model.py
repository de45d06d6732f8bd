"""A decoder-only transformer over a paged KV cache.

Everything is float64, save KV where that is asked for in bfloat16: it is rounded when it is written, and everybody
reads it so. If the work is cut in another way (chunks, batches, ranks, blocks that are loaded instead of computed),
sums are taken in another order, and logits differ in about the fifteenth digit. Two tokens change places only if their
logits are that close. With random weights this does not happen; if all were computed in float32 or bfloat16 it would,
every few thousand tokens. So a greedy output here depends on nothing but the prompt, and any other difference is a
wrong byte in the KV cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvtide.core.groups import Group
from kvtide.engine.arrays import Floats, Ints
from kvtide.engine.attention import attend
from kvtide.engine.config import EngineConfig, ModelConfig
from kvtide.engine.kv_cache import RankCache

ROPE_BASE = 10_000.0
QUERY_GAIN = 3.0
"""Makes attention pick few tokens, so that a single wrong block shows in the output."""
ATTENTION_GAIN = 4.0
"""Makes what attention brings outweigh the token itself, so that outputs depend on the KV cache."""


class Chunk(NamedTuple):
    """Tokens of one request to compute in a step. Their blocks, and those before them, are in `tables`."""

    tokens: Sequence[int]
    start: int
    tables: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices of one layer, to be multiplied from the right."""

    qkv: Floats
    out: Floats
    gate: Floats
    up: Floats
    down: Floats


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model."""

    embedding: Floats
    layers: tuple[LayerWeights, ...]
    head: Floats

    @classmethod
    def random(cls, config: ModelConfig) -> Weights:
        """Draw normal weights from the model's seed, scaled to keep the size of what flows through them."""
        rng = np.random.default_rng(config.seed)

        def matrix(rows: int, columns: int, gain: float = 1.0) -> Floats:
            return rng.normal(scale=gain * rows**-0.5, size=(rows, columns))

        queries, shared = config.heads * config.head_dim, config.kv_heads * config.head_dim
        layers = tuple(
            LayerWeights(
                qkv=np.hstack([matrix(config.hidden, queries, QUERY_GAIN), matrix(config.hidden, 2 * shared)]),
                out=matrix(queries, config.hidden, ATTENTION_GAIN),
                gate=matrix(config.hidden, config.mlp),
                up=matrix(config.hidden, config.mlp),
                down=matrix(config.mlp, config.hidden),
            )
            for _ in range(config.layers)
        )
        embedding = rng.standard_normal((config.vocab, config.hidden))
        return cls(embedding, layers, matrix(config.hidden, config.vocab))


class Model:
    """Computes chunks of many requests at once and leaves their KV in the ranks' caches."""

    def __init__(self, config: EngineConfig, caches: Sequence[RankCache]) -> None:
        self._config = config.model
        self._groups = config.groups
        self._windows = [getattr(group, "window_tokens", None) for group in config.groups]
        self._caches = caches
        self.weights = Weights.random(config.model)
        half = np.arange(config.model.head_dim // 2)
        self._frequencies = ROPE_BASE ** (-half / len(half))

    def forward(self, chunks: Sequence[Chunk]) -> Floats:
        """Compute all tokens of all chunks; returns logits `[chunk, vocab]` of each chunk's last token."""
        batch = _Batch(chunks, self._groups)
        angles = batch.positions[:, None, None] * self._frequencies
        turns = np.cos(angles), np.sin(angles)
        x = self.weights.embedding[batch.tokens]
        for number, weights in enumerate(self.weights.layers):
            x += self._attention(number, weights, normalize(x), turns, batch)
            x += mlp(weights, normalize(x))
        logits: Floats = normalize(x[batch.ends - 1]) @ self.weights.head
        return logits

    def _attention(
        self, number: int, weights: LayerWeights, x: Floats, turns: tuple[Floats, Floats], batch: _Batch
    ) -> Floats:
        layer, group = divmod(number, len(self._groups))
        queries, keys, values = split_heads(self._config, x @ weights.qkv)
        queries, keys = rotate(queries, turns), rotate(keys, turns)
        queries *= self._config.head_dim**-0.5
        mixed = np.empty_like(queries)
        shared = self._config.heads // self._config.kv_heads
        for cache in self._caches:
            cache.write(layer, batch.blocks[group], batch.offsets, keys, values)
            heads = slice(cache.heads.start * shared, cache.heads.stop * shared)
            for span in batch.spans[group]:
                known, values_known = cache.read(layer, span.blocks, span.end - span.keys_start)
                mixed[span.rows, heads] = attend(
                    queries[span.rows, heads],
                    known,
                    values_known,
                    start=span.start,
                    keys_start=span.keys_start,
                    window=self._windows[group],
                )
        projected: Floats = mixed.reshape(len(x), -1) @ weights.out
        return projected


class _Span(NamedTuple):
    """What a chunk attends to in one group."""

    rows: slice
    """The chunk's rows in the batch."""
    start: int
    end: int
    blocks: Ints
    keys_start: int
    """Position of the first token in `blocks`."""


class _Batch:
    """The tokens of all chunks in a row, where their KV goes, and what they attend to."""

    def __init__(self, chunks: Sequence[Chunk], groups: Sequence[Group]) -> None:
        block_tokens = groups[0].block_tokens
        self.tokens: Ints = np.concatenate([chunk.tokens for chunk in chunks])
        self.ends: Ints = np.cumsum([len(chunk.tokens) for chunk in chunks])
        spans = [np.arange(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks]
        self.positions: Ints = np.concatenate(spans)
        self.offsets: Ints = self.positions % block_tokens
        self.blocks: list[Ints] = []
        self.spans: list[list[_Span]] = []
        for index, group in enumerate(groups):
            self.spans.append([])
            blocks = []
            for chunk, positions, row_end in zip(chunks, spans, self.ends, strict=True):
                end = chunk.start + len(chunk.tokens)
                first = group.first_needed(chunk.start)
                table = np.array(chunk.tables[index][first : -(-end // block_tokens)], dtype=np.int64)
                blocks.append(table[positions // block_tokens - first])
                rows = slice(row_end - len(positions), row_end)
                self.spans[-1].append(_Span(rows, chunk.start, end, table, first * block_tokens))
            self.blocks.append(np.concatenate(blocks))


def normalize(x: Floats) -> Floats:
    """RMS normalisation over the last axis, without a learned gain."""
    result: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return result


def mlp(weights: LayerWeights, x: Floats) -> Floats:
    """Gated MLP with SiLU."""
    gate, up = x @ weights.gate, x @ weights.up
    up *= gate
    np.negative(gate, out=gate)
    np.exp(gate, out=gate)
    gate += 1.0
    up /= gate
    result: Floats = up @ weights.down
    return result


def split_heads(config: ModelConfig, qkv: Floats) -> tuple[Floats, Floats, Floats]:
    """Cut rows of queries, keys and values into `[token, head, dim]` each."""
    heads = qkv.reshape(len(qkv), -1, config.head_dim)
    return (
        heads[:, : config.heads],
        heads[:, config.heads : config.heads + config.kv_heads],
        heads[:, config.heads + config.kv_heads :],
    )


def rotate(x: Floats, turns: tuple[Floats, Floats]) -> Floats:
    """Rotary position embedding of `[token, head, dim]`: pairs of values turn with their position."""
    cos, sin = turns
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
