"""Speculative decoding on real models: refused guesses are not stored, EAGLE computes the last block of a hit again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm.llm import BLOCK_TOKENS, engine, prompt
from tests.vllm.models import write_eagle_head
from tests.vllm.test_round_trip import assert_same, hit

pytestmark = pytest.mark.apart  # numba, which proposes n-grams, keeps this vLLM from starting another engine

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
PROMPTS = [prompt(seed, 40) * 5 + prompt(seed, length) for seed, length in ((50, 11), (51, 30), (52, 39), (53, 7))]
"""They repeat themselves, so that there is something to guess."""
NEW_TOKENS = 70
"""More than two blocks."""


def drafted(offloading: Any) -> tuple[int, int]:
    """Return how many tokens were guessed and how many of them were right."""
    found = {metric.name: metric.value for metric in offloading.llm.get_metrics() if hasattr(metric, "value")}
    return found["vllm:spec_decode_num_draft_tokens"], found["vllm:spec_decode_num_accepted_tokens"]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_guesses_that_were_refused_are_not_stored(llama: Path, mode: str) -> None:
    with engine(llama, None) as plain:
        expected = plain.generate(*PROMPTS, max_tokens=NEW_TOKENS)
        turns = [[*tokens, *answer.tokens] for tokens, answer in zip(PROMPTS, expected, strict=True)]
        follow_ups = plain.generate(*turns)
    with engine(llama, mode, speculative_config=NGRAM) as offloading:
        assert_same(offloading.generate(*PROMPTS, max_tokens=NEW_TOKENS, together=True), expected)
        guessed, right = drafted(offloading)
        assert guessed - right > NEW_TOKENS
        offloading.generate(*(prompt(seed, 700) for seed in range(60, 64)))  # drives the others out
        offloading.drain()
        again = offloading.generate(*turns)
        assert_same(again, follow_ups)
        assert [result.cached_tokens for result in again] == [hit(turn) for turn in turns]
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()


def test_eagle_computes_the_last_block_of_a_hit_again(llama: Path, tmp_path: Path) -> None:
    head = write_eagle_head(tmp_path / "eagle")
    eagle = {"method": "eagle", "model": str(head), "num_speculative_tokens": 2}
    with engine(llama, None) as plain:
        expected = plain.generate(*PROMPTS, max_tokens=40)
    with engine(llama, speculative_config=eagle) as offloading:
        assert offloading.side._layout.drops_last_block
        assert_same(offloading.generate(*PROMPTS, max_tokens=40), expected)
        guessed, right = drafted(offloading)
        assert guessed > right
        offloading.forget_device()
        again = offloading.generate(*PROMPTS, max_tokens=40)
        assert_same(again, expected)
        assert [result.cached_tokens for result in again] == [hit(tokens) - BLOCK_TOKENS for tokens in PROMPTS]
        assert offloading.metrics.loaded_tokens == sum(result.cached_tokens for result in again)
        offloading.check_at_rest()
