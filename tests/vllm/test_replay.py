"""What `kvtide replay` predicts is what vLLM does: hits of the device and of the host, on the same prompts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvtide.core.config import Mode
from kvtide.traces.cost import CostModel
from kvtide.traces.hashing import prefix_hashes
from kvtide.traces.record import TraceRequest
from kvtide.traces.replay import Replay, ReplayConfig
from kvtide.traces.replay_result import ReplayResult
from tests.vllm.llm import BLOCK_TOKENS, MAX_TOKENS, engine

ONE_BY_ONE = CostModel(1e12, 1e-12, 1e9, 1e9, 0.0)
"""Copies end after the request that they belong to and before the next one comes."""
POINT = 0.01
STEP_TOKENS = MAX_TOKENS
"""Every prompt is computed in one step, as in a replay."""


def conversations(seed: int, count: int) -> list[list[int]]:
    """Prompts of conversations that take turns, some of which go on until they are too long for the model."""
    draw = random.Random(seed)
    said: list[list[int]] = []
    prompts = []
    for _ in range(count):
        if said and draw.random() < 0.65:
            tokens = said[draw.randrange(len(said))]
        else:
            tokens = [draw.randrange(3, 512) for _ in range(draw.randrange(60, 300))]
            said.append(tokens)
        tokens += [draw.randrange(3, 512) for _ in range(draw.randrange(5, 90))]
        if len(tokens) > MAX_TOKENS - 100:
            said.remove(tokens)
        prompts.append(list(tokens))
    return prompts


def replayed(prompts: list[list[int]], mode: Mode, *, device_blocks: int, slots: int) -> ReplayResult:
    """Replay the prompts, one a second. What is generated is one token, which vLLM keeps no KV of."""
    config = ReplayConfig(
        block_tokens=BLOCK_TOKENS,
        bytes_per_token=1024,
        device_blocks=device_blocks,
        host_bytes=slots * BLOCK_TOKENS * 1024,
        policy="forecast",
        mode=mode,
        cost=ONE_BY_ONE,
        step_tokens=STEP_TOKENS,
    )
    trace = [
        TraceRequest(float(number), prefix_hashes(tokens, BLOCK_TOKENS), len(tokens), 0)
        for number, tokens in enumerate(prompts)
    ]
    return Replay(config).run(trace)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_hit_ratios_of_replay_agree_with_vllm(llama: Path, mode: Mode) -> None:
    prompts = conversations(seed=5, count=120)
    options = {"host": "9MiB", "policy": "forecast"}
    with engine(llama, mode, options=options, max_num_batched_tokens=STEP_TOKENS) as offloading:
        slots = offloading.manager.config.slots
        device_blocks = offloading.manager.config.geometry.device_blocks
        reused = 0
        for tokens in prompts:
            reused += offloading.generate(tokens, max_tokens=1)[0].cached_tokens
            offloading.drain()
        loaded = offloading.metrics.loaded_tokens
    total = sum(map(len, prompts))
    result = replayed(prompts, mode, device_blocks=device_blocks, slots=slots)
    assert result.prompt_tokens == total
    assert abs(result.share(result.device_tokens) - (reused - loaded) / total) < POINT
    assert abs(result.share(result.host_tokens) - loaded / total) < POINT
    assert result.share(result.device_tokens) > 0.05
    assert result.share(result.host_tokens) > 0.05
    assert result.missed["evicted"] > 0, "the host has to be too small for this to say anything"
