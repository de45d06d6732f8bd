"""Replay: the real core in virtual time. What goes in comes out, and agrees with an engine that really runs."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest

from kvtide.core.eviction import POLICIES
from kvtide.engine import Engine, EngineConfig, ModelConfig
from kvtide.errors import ConfigError
from kvtide.traces.cost import PRESETS, CostModel, preset
from kvtide.traces.hashing import prefix_hashes
from kvtide.traces.record import TraceRequest
from kvtide.traces.replay import Replay, ReplayConfig
from kvtide.traces.replay_report import as_json, replay_tables
from kvtide.traces.replay_result import ReplayResult
from kvtide.traces.workloads import Workload
from tests.traces.support import request

LIKE_THE_ENGINE = CostModel(1e12, 1e-12, 1e9, 1e9, 0.0, "a test")
"""Copies end after the request that they belong to and before the next one, as when the engine serves one by one."""


def replay(
    requests: Iterable[TraceRequest],
    *,
    device_blocks: int = 256,
    slots: int = 1000,
    policy: str = "prefix",
    mode: str = "eager",
    block_tokens: int = 512,
    cost: CostModel = PRESETS["h200"],
) -> ReplayResult:
    config = ReplayConfig(
        block_tokens=block_tokens,
        bytes_per_token=1024,
        device_blocks=device_blocks,
        host_bytes=slots * block_tokens * 1024,
        policy=policy,
        mode=mode,
        cost=cost,
    )
    return Replay(config).run(requests)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_every_token_is_accounted_for(policy: str, mode: str) -> None:
    workload = Workload("mixture", 200, seed=4)
    result = replay(workload, policy=policy, mode=mode, device_blocks=128, slots=600)
    assert result.requests == 200
    assert len(result.ttft_s) == 200
    assert result.prompt_tokens == sum(one.prompt_tokens for one in workload)
    assert result.device_tokens + result.host_tokens + result.computed_tokens == result.prompt_tokens
    assert sum(result.missed.values()) == result.computed_tokens
    assert result.host_tokens > 0
    assert result.loaded_bytes == result.host_tokens * 1024


def test_with_room_for_everything_only_what_is_new_is_computed() -> None:
    result = replay(Workload("agents", 150), device_blocks=20_000)
    assert result.missed["evicted"] == 0
    assert result.host_tokens == 0


def test_what_was_evicted_from_both_is_told_from_what_was_never_seen() -> None:
    requests = [request(float(index * 10), (index % 3 * 10, index % 3 * 10 + 1)) for index in range(6)]
    result = replay(requests, device_blocks=4, slots=2, block_tokens=4)
    assert result.missed["never_seen"] == 3 * 8
    assert result.missed["evicted"] == 3 * 8


def test_a_slower_gpu_takes_longer_and_hits_do_not_depend_on_the_link() -> None:
    fast, slow = (replay(Workload("chats", 200), cost=preset(gpu)) for gpu in ("h100", "l4"))
    assert fast.ttft_at(0.5) < slow.ttft_at(0.5)
    assert abs(fast.hit_ratio - slow.hit_ratio) < 0.02


def test_a_request_that_can_never_fit_is_counted_and_passed_over() -> None:
    result = replay([request(0, range(10)), request(1, (1, 2))], device_blocks=4, block_tokens=4)
    assert result.too_large == 1
    assert len(result.ttft_s) == 1


def test_requests_wait_for_device_blocks() -> None:
    result = replay(
        [request(0, (10 * n, 10 * n + 1), output_tokens=1) for n in range(4)], device_blocks=4, block_tokens=4
    )
    assert result.lost_to_blocks_s > 0
    assert len(result.ttft_s) == 4


def test_times_that_go_back_are_taken_as_now() -> None:
    result = replay([request(5, (1,)), request(3, (2,))], block_tokens=4)
    assert len(result.ttft_s) == 2
    assert result.duration_s >= 5


def test_the_same_trace_gives_the_same_result() -> None:
    first, second = (as_json(replay(Workload("mixture", 120), policy="forecast")) for _ in range(2))
    assert first == second


def test_the_report_has_what_was_promised() -> None:
    result = replay(Workload("chats", 60))
    plain = json.loads(json.dumps(as_json(result)))
    assert plain["tokens"].keys() == {"device", "host", "below", "computed"}
    assert plain["ttft_s"].keys() == {"mean", "p50", "p90", "p99"}
    assert plain["lost_s"].keys() == {"device_blocks", "compute", "pins"}
    assert len(replay_tables(result)) == 2


@pytest.mark.parametrize("gpu", PRESETS)
def test_every_preset_names_its_source(gpu: str) -> None:
    assert len(preset(gpu).source) > 30
    assert 1_000 < preset(gpu).prefill_tokens_per_s < 100_000


def test_an_unknown_gpu_and_rates_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="one of h200"):
        preset("abacus")
    with pytest.raises(ConfigError, match="prefill_tokens_per_s"):
        CostModel(0, 1, 1, 1, 1, "")


# ---------------------------------------------------------------------- against the embedded engine

MODEL = ModelConfig(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, mlp=32, vocab=64)
BLOCK_TOKENS = 4


def conversations(seed: int) -> list[list[int]]:
    """Prompts of conversations that take turns, some of which go on."""
    rng = np.random.default_rng(seed)
    said: list[list[int]] = []
    prompts = []
    for _ in range(200):
        if said and rng.random() < 0.6:
            tokens = said[int(rng.integers(len(said)))]
        else:
            tokens = rng.integers(64, size=int(rng.integers(8, 40))).tolist()
            said.append(tokens)
        tokens += rng.integers(64, size=int(rng.integers(1, 12))).tolist()
        prompts.append(list(tokens))
    return prompts


@pytest.mark.parametrize("policy", POLICIES)
def test_hit_ratios_agree_with_those_of_the_embedded_engine(policy: str) -> None:
    prompts = conversations(seed=1)
    config = EngineConfig(model=MODEL, device_blocks=64, block_tokens=BLOCK_TOKENS, step_tokens=512)
    slot_bytes = config.geometry().block_bytes
    reused = total = 0
    with Engine(config, offload={"host": 100 * slot_bytes, "policy": policy}) as engine:
        for number, prompt in enumerate(prompts):
            engine.submit(str(number), prompt, max_new_tokens=1)
            for done in engine.run():
                reused += done.device_tokens + done.loaded_tokens
                total += done.prompt_tokens
    trace = [
        TraceRequest(float(number), prefix_hashes(prompt, BLOCK_TOKENS), len(prompt), 1)
        for number, prompt in enumerate(prompts)
    ]
    replayed = replay(
        trace, device_blocks=64, slots=100, policy=policy, block_tokens=BLOCK_TOKENS, cost=LIKE_THE_ENGINE
    )
    assert abs(replayed.hit_ratio - reused / total) < 0.01
    assert 0.1 < replayed.hit_ratio < 0.9
