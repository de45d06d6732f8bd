"""Preemption, aborts, failing copies and resets on real models: never a wrong token, never a dead engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtide.copy import Direction
from kvtide.core import NotLoaded, NotStored
from tests.vllm.engines import Control
from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import BLOCK_TOKENS, Result, as_result, engine, params
from tests.vllm.test_round_trip import assert_same, hit

LONG = [PROMPTS[index] for index in (3, 4, 9, 10)]
"""400 and 500 tokens, twice: 58 blocks with what they generate."""


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_preempted_requests_load_back_what_was_stored(llama: Path, llama_says: Says, mode: str) -> None:
    with engine(llama, mode, blocks=30, max_model_len=640) as offloading:
        for _ in range(2):
            results = offloading.generate(*LONG, max_tokens=24, together=True)
            assert_same(results, llama_says(*LONG, max_tokens=24))
        assert offloading.metrics.preemptions > 0
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()


def test_preempted_requests_of_a_hybrid_model(gemma: Path, gemma_says: Says) -> None:
    args: dict[str, Any] = {"max_num_batched_tokens": 128, "scheduler_reserve_full_isl": False}
    with engine(gemma, blocks=44, max_model_len=640, **args) as offloading:
        for _ in range(2):
            results = offloading.generate(*LONG, max_tokens=24, together=True)
            assert_same(results, gemma_says(*LONG, max_tokens=24))
        assert offloading.metrics.preemptions > 0
        assert offloading.metrics.loaded_tokens > 0
        offloading.check_at_rest()


def test_aborted_while_loading(llama: Path, llama_says: Says, control: Control) -> None:
    tokens = PROMPTS[4]
    with engine(llama) as offloading:
        offloading.generate(tokens)
        offloading.forget_device()
        control.engine.held.add(Direction.LOAD)
        name = offloading.add(tokens)
        for _ in range(3):
            offloading.step()
        assert control.engine.waiting
        offloading.llm.llm_engine.abort_request([name])
        for _ in range(3):
            offloading.step()
        assert offloading.pool.get_num_free_blocks() < offloading.free_at_start  # the load may still write to them
        control.engine.held.clear()
        offloading.check_at_rest()
        assert_same(offloading.generate(tokens), llama_says(tokens))
        offloading.check_at_rest()


def test_aborted_while_storing(llama: Path, llama_says: Says, control: Control) -> None:
    tokens = PROMPTS[5]
    with engine(llama, max_num_batched_tokens=128) as offloading:
        name = offloading.add(tokens)
        for _ in range(3):
            offloading.step()
        offloading.llm.llm_engine.abort_request([name])
        offloading.check_at_rest()
        # Three chunks were computed, and all of their blocks are stored.
        assert offloading.metrics.stored_blocks == 3 * 128 // BLOCK_TOKENS
        offloading.forget_device()
        [result] = offloading.generate(tokens)
        assert_same([result], llama_says(tokens))
        assert result.cached_tokens == 3 * 128


@pytest.mark.parametrize("model", ["llama", "gemma"])
def test_f8_a_load_that_fails_is_computed_whatever_the_policy(
    request: pytest.FixtureRequest, control: Control, model: str
) -> None:
    path, says = request.getfixturevalue(model), request.getfixturevalue(f"{model}_says")
    prompts = PROMPTS[:4]
    with engine(path, blocks=128) as offloading:
        assert offloading.core.vllm_config.kv_transfer_config.kv_load_failure_policy == "recompute"
        assert_same(offloading.generate(*prompts), says(*prompts))
        offloading.forget_device()
        control.engine.failing.add(Direction.LOAD)
        assert_same(offloading.generate(*prompts, together=True), says(*prompts))
        assert offloading.metrics.loads_failed > 0
        assert offloading.metrics.not_loaded[NotLoaded.COPY_FAILED] > 0
        assert offloading.metrics.loaded_tokens == 0
        control.engine.failing.clear()
        offloading.forget_device()
        again = offloading.generate(*prompts)
        assert_same(again, says(*prompts))
        assert [result.cached_tokens for result in again] == [hit(tokens) for tokens in prompts]
        offloading.check_at_rest()


def test_a_load_that_fails_behind_a_hit_on_the_device(llama: Path, llama_says: Says, control: Control) -> None:
    tokens = PROMPTS[5]
    with engine(llama) as offloading:
        offloading.generate(tokens)
        offloading.forget_device()
        offloading.generate(tokens[:200])  # the device has these, the host the rest
        control.engine.failing.add(Direction.LOAD)
        [result] = offloading.generate(tokens)
        assert_same([result], llama_says(tokens))
        assert offloading.metrics.loads_failed == 1
        offloading.check_at_rest()


def test_f17_stores_that_fail_cost_hits_and_nothing_else(llama: Path, llama_says: Says, control: Control) -> None:
    prompts = PROMPTS[:3]
    with engine(llama) as offloading:
        offloading.drain()
        control.engine.failing.add(Direction.STORE)
        assert_same(offloading.generate(*prompts), llama_says(*prompts))
        offloading.forget_device()
        assert_same(offloading.generate(*prompts), llama_says(*prompts))
        assert offloading.metrics.stored_blocks == 0
        assert offloading.metrics.stores_failed > 0
        assert offloading.metrics.not_stored[NotStored.COPY_FAILED] > 0
        offloading.check_at_rest()


def test_f9_reset_while_stores_run(llama: Path, llama_says: Says, control: Control) -> None:
    tokens = PROMPTS[4]
    with engine(llama) as offloading:
        offloading.generate(PROMPTS[0])
        control.engine.held.add(Direction.STORE)
        offloading.generate(tokens)
        offloading.step()
        assert control.engine.waiting
        assert offloading.llm.reset_prefix_cache(reset_connector=True)
        assert offloading.manager.gauges().slots_cached == 0
        assert offloading.manager.gauges().store_pins > 0
        control.engine.held.clear()
        offloading.drain()
        assert offloading.manager.gauges().slots_cached == 0
        [result] = offloading.generate(tokens)
        assert result.cached_tokens == 0
        assert_same([result], llama_says(tokens))
        offloading.check_at_rest()


def test_f9_reset_while_a_load_runs_lets_the_request_compute(llama: Path, llama_says: Says, control: Control) -> None:
    tokens = PROMPTS[4]
    with engine(llama) as offloading:
        offloading.generate(tokens)
        offloading.forget_device()
        control.engine.held.add(Direction.LOAD)
        offloading.add(tokens)
        for _ in range(2):
            offloading.step()
        assert control.engine.waiting
        offloading.scheduler.reset_connector_cache()
        control.engine.held.clear()
        [output] = offloading.drain()
        assert_same([as_result(output)], llama_says(tokens))
        assert offloading.metrics.loaded_tokens == 0
        assert offloading.metrics.not_loaded[NotLoaded.RESET] == hit(tokens)
        offloading.check_at_rest()


def test_requests_that_skip_the_prefix_cache_load_nothing(llama: Path, llama_says: Says) -> None:
    tokens = PROMPTS[3]
    with engine(llama) as offloading:
        offloading.generate(tokens)
        offloading.forget_device()
        fresh = params(4)
        fresh.skip_reading_prefix_cache = True
        [output] = offloading.llm.generate([{"prompt_token_ids": tokens}], fresh, use_tqdm=False)
        result: Result = as_result(output)
        assert_same([result], llama_says(tokens))
        assert offloading.metrics.loaded_tokens == 0
        offloading.check_at_rest()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_f15_a_lost_device_turns_kvtide_off_and_nothing_else(
    llama: Path, llama_says: Says, control: Control, mode: str
) -> None:
    """On a real GPU everything would be over; what counts here is that kvtide stops asking for copies."""
    prompts = PROMPTS[:6]
    with engine(llama, mode) as offloading:
        offloading.generate(*prompts)
        offloading.drain()
        control.engine.failing.update(Direction)
        control.engine.gone = "the device fell off the bus"
        assert_same(offloading.generate(*prompts), llama_says(*prompts))
        stored, loaded = offloading.metrics.stored_blocks, offloading.metrics.loaded_tokens
        control.engine.failing.clear()
        assert_same(offloading.generate(*prompts, *PROMPTS[6:8]), llama_says(*prompts, *PROMPTS[6:8]))
        offloading.drain()
        assert not control.engine.waiting
        assert (offloading.metrics.stored_blocks, offloading.metrics.loaded_tokens) == (stored, loaded)
