from __future__ import annotations

import random

import numpy as np
import pytest

from kvtide.engine.arrays import Floats
from kvtide.engine.attention import TILE_TOKENS
from kvtide.engine.config import EngineConfig
from kvtide.engine.kv_cache import RankCache
from kvtide.engine.model import Chunk, Model
from tests.engine import reference
from tests.engine.support import PLENTY_BLOCKS, prompt, tiny_config

WINDOWS = [None, 5, 20]


class Paged:
    """A model with tables of shuffled blocks for one request."""

    def __init__(self, config: EngineConfig, num_tokens: int, seed: int = 0) -> None:
        self.caches = [RankCache(config, rank) for rank in range(config.ranks)]
        self.model = Model(config, self.caches)
        blocks = random.Random(seed).sample(range(1, PLENTY_BLOCKS), 2 * (num_tokens // config.block_tokens + 1))
        half = len(blocks) // 2
        self.tables = [blocks[:half], blocks[half:]][: len(config.groups)]

    def run(self, tokens: list[int], cuts: list[int]) -> Floats:
        """Compute `tokens` in chunks that end at `cuts`; return the logits at the cuts."""
        starts = [0, *cuts[:-1]]
        rows = [
            self.model.forward([Chunk(tokens[start:end], start, self.tables)])[0]
            for start, end in zip(starts, cuts, strict=True)
        ]
        return np.array(rows)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("cuts", [[45], [8, 16, 45], [3, 4, 29, 45], list(range(1, 46))])
def test_paged_and_chunked_equals_dense(window: int | None, cuts: list[int]) -> None:
    config, tokens = tiny_config(window), prompt(1, 45)
    expected = reference.logits(config.model, tokens)[np.array(cuts) - 1]
    np.testing.assert_allclose(Paged(config, 45).run(tokens, cuts), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("window", WINDOWS)
def test_chunks_longer_than_a_tile_equal_dense(window: int | None) -> None:
    length = 2 * TILE_TOKENS + 7
    config, tokens = tiny_config(window), prompt(1, length)
    expected = reference.logits(config.model, tokens)[[9, length - 1]]
    np.testing.assert_allclose(Paged(config, length).run(tokens, [10, length]), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("window", WINDOWS)
def test_ranks_and_batches_do_not_matter(window: int | None) -> None:
    config = tiny_config(window, ranks=2)
    first, second = prompt(1, 30), prompt(2, 19)
    paged = Paged(config, 48)
    other = [table[4:] for table in paged.tables]  # blocks that the first request does not use
    together = paged.model.forward([Chunk(first, 0, paged.tables), Chunk(second, 0, other)])
    expected = [reference.logits(config.model, tokens)[-1] for tokens in (first, second)]
    np.testing.assert_allclose(together, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("window", WINDOWS)
def test_rounding_is_far_below_what_could_change_a_token(window: int | None) -> None:
    config, tokens = tiny_config(window), prompt(3, 60)
    whole = Paged(config, 60).run(tokens, [60])[0]
    pieces = Paged(config, 60).run(tokens, list(range(1, 61)))[-1]
    best, second = np.sort(whole)[[-1, -2]]
    assert np.abs(whole - pieces).max() < 1e-6 * (best - second)


@pytest.mark.parametrize("window", [None, 20])
def test_blocks_that_a_window_has_left_behind_are_not_read(window: int | None) -> None:
    config, tokens = tiny_config(window), prompt(4, 48)
    paged = Paged(config, 48)
    expected = paged.run(tokens, [40, 48])[-1]
    group = len(config.groups) - 1
    needed = config.groups[group].first_needed(40)
    for cache in paged.caches:
        cache.pages[:, paged.tables[group][:needed]] = np.nan
    paged.tables[group][:needed] = [0] * needed
    np.testing.assert_array_equal(paged.model.forward([Chunk(tokens[40:], 40, paged.tables)])[0], expected)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_wrong_block_changes_the_output(window: int | None) -> None:
    """Otherwise tests that compare outputs would show nothing."""
    config = tiny_config(window)
    changed = 0
    for seed in range(20):
        paged, tokens = Paged(config, 72, seed), prompt(seed, 64)
        good = generate(paged, tokens, 8)
        wrong = paged.tables[-1][7] if window else paged.tables[0][seed % 8]
        other = Paged(config, 72, seed)
        other.run(prompt(seed + 100, 64), [64])
        paged.caches[0].pages[:, wrong] = other.caches[0].pages[:, wrong]
        changed += generate(paged, tokens, 8) != good
    assert changed >= 17


def generate(paged: Paged, tokens: list[int], count: int) -> list[int]:
    """Compute the prompt unless it is there, and generate from it."""
    if not paged.caches[0].pages.any():
        paged.run(tokens, [len(tokens)])
    out = [tokens[-1]]
    for position in range(len(tokens) - 1, len(tokens) - 1 + count):
        out.append(int(paged.model.forward([Chunk(out[-1:], position, paged.tables)])[0].argmax()))
    return out[1:]
