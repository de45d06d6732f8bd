"""The transformer once more, dense and slow: no blocks, no chunks, no batches, no ranks, one token at a time."""

from __future__ import annotations

import math

import numpy as np

from kvtide.engine.arrays import Floats
from kvtide.engine.config import ModelConfig
from kvtide.engine.model import ROPE_BASE, Weights


def logits(config: ModelConfig, tokens: list[int]) -> Floats:
    """Return `[token, vocab]`."""
    weights = Weights.random(config)
    rows = [weights.embedding[token] for token in tokens]
    for number, layer in enumerate(weights.layers):
        window = config.window_tokens if config.window_tokens is not None and number % 2 else len(tokens)
        normed = [_norm(row) for row in rows]
        mixed = _attention(config, [row @ layer.qkv for row in normed], window)
        rows = [row + mix @ layer.out for row, mix in zip(rows, mixed, strict=True)]
        for index, row in enumerate(rows):
            gate, up = _norm(row) @ layer.gate, _norm(row) @ layer.up
            rows[index] = row + (gate / (1 + np.exp(-gate)) * up) @ layer.down
    return np.array([_norm(row) @ weights.head for row in rows])


def greedy(config: ModelConfig, prompt: list[int], count: int) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits(config, tokens)[-1].argmax()))
    return tuple(tokens[len(prompt) :])


def _norm(row: Floats) -> Floats:
    normed: Floats = row / math.sqrt(float(row @ row) / len(row) + 1e-6)
    return normed


def _attention(config: ModelConfig, rows: list[Floats], window: int) -> list[Floats]:
    heads = [row.reshape(-1, config.head_dim) for row in rows]
    out = []
    for position, row in enumerate(heads):
        seen = range(max(0, position - window + 1), position + 1)
        mixed = []
        for head in range(config.heads):
            kv = config.heads + head * config.kv_heads // config.heads
            query = _turn(row[head], position)
            scores = np.array([query @ _turn(heads[other][kv], other) for other in seen])
            scores = np.exp((scores - scores.max()) / math.sqrt(config.head_dim))
            values = np.array([heads[other][kv + config.kv_heads] for other in seen])
            mixed.append(scores / scores.sum() @ values)
        out.append(np.concatenate(mixed))
    return out


def _turn(vector: Floats, position: int) -> Floats:
    half = len(vector) // 2
    turned = vector.copy()
    for i in range(half):
        angle = position * ROPE_BASE ** (-i / half)
        a, b = vector[i], vector[i + half]
        turned[i] = a * math.cos(angle) - b * math.sin(angle)
        turned[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return turned
