"""Out to the host and back on real models: same tokens, same logprobs, hits where they must be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kvtide.core import FullAttention, StateSpace
from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import BLOCK_TOKENS, Result, engine, prompt
from tests.vllm.models import LFM2_ARGS, write_lfm2


def assert_same(results: Sequence[Result], expected: Sequence[Result]) -> None:
    for index, (result, plain) in enumerate(zip(results, expected, strict=True)):
        assert result.same_as(plain), f"prompt {index}: {result} instead of {plain}"


def hit(tokens: Sequence[int]) -> int:
    """What can come from a cache: whole blocks, without the last token."""
    return (len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_llama_loads_back_what_was_evicted(llama: Path, llama_says: Says, mode: str) -> None:
    prompts = PROMPTS[:6]  # 2,100 tokens, the device has room for 2,016
    with engine(llama, mode) as offloading:
        assert_same(offloading.generate(*prompts), llama_says(*prompts))
        offloading.drain()
        again = offloading.generate(*prompts)
        assert_same(again, llama_says(*prompts))
        assert [result.cached_tokens for result in again] == [hit(tokens) for tokens in prompts]
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_gemma_resumes_sliding_and_full_groups(gemma: Path, gemma_says: Says, mode: str) -> None:
    prompts = PROMPTS[:6]
    with engine(gemma, mode, blocks=96) as offloading:
        assert len(offloading.side.config.geometry.groups) == 3
        assert_same(offloading.generate(*prompts), gemma_says(*prompts))
        offloading.drain()
        again = offloading.generate(*prompts)
        assert_same(again, gemma_says(*prompts))
        assert [result.cached_tokens for result in again] == [hit(tokens) for tokens in prompts]
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_states_of_a_state_space_hybrid_come_back(tmp_path: Path, mode: str) -> None:
    """LFM2: two groups, one of states (vLLM's mode "align") and one of full attention."""
    model = write_lfm2(tmp_path / "lfm2")
    prompts = [prompt(seed, length) for seed, length in enumerate((700, 500, 650))]
    with engine(model, None, **LFM2_ARGS) as plain:
        expected = plain.generate(*prompts)
    with engine(model, mode, **LFM2_ARGS) as offloading:
        assert [type(group) for group in offloading.side.config.geometry.groups] == [StateSpace, FullAttention]
        assert_same(offloading.generate(*prompts), expected)
        offloading.generate(*(prompt(seed, 700) for seed in range(10, 14)))  # drives the others out
        offloading.drain()
        again = offloading.generate(*prompts)
        assert_same(again, expected)
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()


def test_f1_a_prompt_that_finishes_in_its_first_step_is_stored(llama: Path, llama_says: Says) -> None:
    prompts = PROMPTS[:5]
    with engine(llama) as offloading:
        assert_same(offloading.generate(*prompts, max_tokens=1), llama_says(*prompts, max_tokens=1))
        offloading.forget_device()
        again = offloading.generate(*prompts, max_tokens=1)
        assert_same(again, llama_says(*prompts, max_tokens=1))
        assert [result.cached_tokens for result in again] == [hit(tokens) for tokens in prompts]
        offloading.check_at_rest()


def test_chunked_prefill_stores_every_block(llama: Path, llama_says: Says) -> None:
    prompts = PROMPTS[:6]
    with engine(llama, max_num_batched_tokens=80) as offloading:
        assert_same(offloading.generate(*prompts, together=True), llama_says(*prompts))
        offloading.forget_device()
        again = offloading.generate(*prompts, together=True)
        assert_same(again, llama_says(*prompts))
        assert offloading.metrics.loaded_tokens == sum(hit(tokens) for tokens in prompts)
        offloading.check_at_rest()


def test_f19_what_computing_and_loading_take_is_learned(llama: Path, llama_says: Says) -> None:
    with engine(llama, options={"min_load_tokens": "auto"}) as offloading:
        for _ in range(2):
            assert_same(offloading.generate(*PROMPTS), llama_says(*PROMPTS))
        offloading.check_at_rest()
        even = offloading.side.manager._loads.break_even
        assert even._loads, "loads were timed"
        assert even._loads.mean[1] > 0
        assert even._compute, "steps were timed"


def test_generated_tokens_are_stored_and_loaded_in_the_next_turn(llama: Path, llama_says: Says) -> None:
    first = PROMPTS[2]
    [answer] = llama_says(first, max_tokens=24)
    with engine(llama) as offloading:
        assert_same(offloading.generate(first, max_tokens=24), [answer])
        offloading.forget_device()
        turn = [*first, *answer.tokens]
        [result] = offloading.generate(turn, max_tokens=1)
        # The last sampled token has no KV; all others have.
        assert result.cached_tokens == (len(turn) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        offloading.check_at_rest()
        offloading.forget_device()
    with engine(llama, None) as plain:
        assert_same([result], plain.generate(turn, max_tokens=1))


def test_stores_are_drained_without_another_request(llama: Path) -> None:
    with engine(llama) as offloading:
        offloading.generate(PROMPTS[0])
        for _ in range(1_000):
            if not offloading.scheduler.has_requests():
                break
            offloading.step()
        assert offloading.metrics.stored_blocks == len(PROMPTS[0]) // BLOCK_TOKENS
        offloading.check_at_rest()
