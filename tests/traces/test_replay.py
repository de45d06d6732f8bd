"""Replay: the real core in virtual time. What goes in comes out, and agrees with an engine that really runs."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest

from kvtide.core import Fetch, Lookup, Sink
from kvtide.core.config import Admission, Mode
from kvtide.core.eviction import POLICIES
from kvtide.engine import Engine, EngineConfig, ModelConfig
from kvtide.errors import ConfigError
from kvtide.traces.cost import CostModel
from kvtide.traces.gpus import GPUS
from kvtide.traces.hashing import prefix_hashes
from kvtide.traces.record import TraceRequest
from kvtide.traces.replay import Replay, ReplayConfig
from kvtide.traces.replay_below import Below, BelowModel, BelowStack, Write
from kvtide.traces.replay_report import as_json, replay_tables
from kvtide.traces.replay_result import ReplayResult
from kvtide.traces.workloads import Workload
from tests.traces.support import request
from tests.traces.support_plan import preset

H200 = preset("h200")
LIKE_THE_ENGINE = CostModel(1e12, 1e-12, 1e9, 1e9, 0.0)
"""Copies end after the request that they belong to and before the next one, as when the engine serves one by one."""


def replay(
    requests: Iterable[TraceRequest],
    *,
    device_blocks: int = 256,
    slots: int = 1000,
    policy: str = "prefix",
    mode: Mode = "eager",
    block_tokens: int = 512,
    cost: CostModel = H200,
    admission: Admission = "all",
    below: BelowModel | tuple[BelowModel, ...] = (),
    servers: int = 1,
) -> ReplayResult:
    config = ReplayConfig(
        block_tokens=block_tokens,
        bytes_per_token=1024,
        device_blocks=device_blocks,
        host_bytes=slots * block_tokens * 1024,
        policy=policy,
        mode=mode,
        cost=cost,
        admission=admission,
        below=below if isinstance(below, tuple) else (below,),
        servers=servers,
    )
    return Replay(config).run(requests)


def below(
    blocks: int = 100_000,
    *,
    block_tokens: int = 512,
    bytes_per_s: float = 1e12,
    latency_s: float = 0.0001,
    write: Write = "through",
    shared: bool = False,
) -> BelowModel:
    return BelowModel(
        size_bytes=blocks * block_tokens * 1024,
        read_bytes_per_s=bytes_per_s,
        write_bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        deadline_s=0.05,
        write=write,
        shared=shared,
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_every_token_is_accounted_for(policy: str, mode: Mode) -> None:
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


@pytest.mark.parametrize("gpu", GPUS)
def test_every_preset_has_rates_that_can_be(gpu: str) -> None:
    assert 1_000 < preset(gpu).prefill_tokens_per_s < 100_000


def test_an_unknown_gpu_and_rates_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="one of h200"):
        preset("abacus")
    with pytest.raises(ConfigError, match="prefill_tokens_per_s"):
        CostModel(0, 1, 1, 1, 1)


# ---------------------------------------------------------------------- below the host


@pytest.mark.parametrize("write", ["through", "evict"])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_what_the_host_gave_up_comes_back_from_below(mode: Mode, write: Write) -> None:
    workload = Workload("mixture", 200, seed=4)
    without = replay(workload, mode=mode, device_blocks=128, slots=300)
    result = replay(workload, mode=mode, device_blocks=128, slots=300, below=below(write=write))
    assert result.below_tokens > 0
    assert result.hit_ratio > without.hit_ratio
    tokens = result.device_tokens + result.host_tokens + result.below_tokens
    assert tokens + result.computed_tokens == result.prompt_tokens
    assert sum(result.missed.values()) == result.computed_tokens
    assert result.fetched_bytes >= result.below_tokens * 1024
    assert result.sunk_bytes > 0
    assert result.loaded_bytes == (result.host_tokens + result.below_tokens) * 1024
    assert result.missed["evicted"] < without.missed["evicted"]


def test_a_larger_disk_never_hits_less_and_one_that_is_too_slow_is_left_alone() -> None:
    workload = Workload("chats", 200, seed=3)
    sizes = [
        replay(workload, device_blocks=128, slots=200, below=below(blocks)).hit_ratio for blocks in (50, 500, 50_000)
    ]
    assert sizes == sorted(sizes)
    slow = replay(workload, device_blocks=128, slots=200, below=below(bytes_per_s=1e6))
    assert slow.hit_ratio < sizes[-1]
    assert slow.missed["tier_late"] + slow.missed["not_fetched"] > 0
    assert len(slow.ttft_s) == 200


def test_a_store_that_never_answers_in_time_costs_hits_and_no_request() -> None:
    workload = Workload("chats", 100)
    result = replay(workload, device_blocks=128, slots=200, below=below(latency_s=10.0))
    assert result.below_tokens == 0
    assert len(result.ttft_s) + result.too_large == 100


def test_servers_see_what_others_computed_only_in_a_shared_store() -> None:
    requests = [request(10.0 * number, (1, 2, 3, 4), block_tokens=512) for number in range(8)]
    own, shared = (replay(requests, servers=4, below=below(shared=shared)) for shared in (False, True))
    assert own.below_tokens == 0
    assert own.device_tokens == 4 * 4 * 512
    assert shared.below_tokens == 3 * 4 * 512
    assert shared.hit_ratio > own.hit_ratio


def test_with_servers_every_token_is_accounted_for() -> None:
    workload = Workload("mixture", 200, seed=4)
    result = replay(workload, servers=3, device_blocks=128, slots=300, below=below(shared=True))
    assert len(result.ttft_s) == 200
    tokens = result.device_tokens + result.host_tokens + result.below_tokens
    assert tokens + result.computed_tokens == result.prompt_tokens
    assert sum(result.missed.values()) == result.computed_tokens


def test_below_keeps_what_was_used_last_and_heads_longer_than_tails() -> None:
    disk = Below(below(3, block_tokens=1), 1024)
    tier = BelowStack([disk])
    names = [(0, b"%d" % number) for number in range(4)]
    assert tier.end(Sink(1, tuple(names[:3]), (0, 1, 2)), 0.0).hits == (0, 1, 2)
    assert tier.end(Sink(2, (names[3],), (0,)), 0.0).hits == (0,)
    assert tier.end(Lookup(3, tuple(names)), 0.0).hits == (0, 1, 3)
    assert tier.end(Fetch(4, (names[0],), (0,)), 0.0).hits == (0,)
    assert tier.leading([b"0", b"1", b"2"]) == 2
    assert len(disk) == 3


def test_reads_queue_behind_each_other_and_not_behind_writes() -> None:
    tier = BelowStack([Below(below(100, block_tokens=1, bytes_per_s=1024.0, latency_s=0.5), 1024)])
    two = ((0, b"a"), (0, b"b"))
    assert tier.begin(Sink(1, two, (0, 1)), 0.0) == 2.5
    tier.end(Sink(1, two, (0, 1)), 2.5)
    assert tier.begin(Fetch(2, two, (0, 1)), 0.0) == 2.5
    assert tier.begin(Fetch(3, two, (0, 1)), 1.0) == 4.5
    assert tier.begin(Lookup(4, two), 1.0) == 1.05


def test_blocks_come_from_the_nearest_tier_that_has_them() -> None:
    disk = Below(below(2, block_tokens=1, bytes_per_s=1024.0, latency_s=0.25), 1024)
    store = Below(below(100, block_tokens=1, bytes_per_s=512.0, latency_s=0.5, shared=True), 1024)
    tier = BelowStack([disk, store])
    names = ((0, b"a"), (0, b"b"), (0, b"c"))
    sink, fetch = Sink(1, names, (0, 1, 2)), Fetch(2, names, (0, 1, 2))
    assert tier.begin(sink, 0.0) == 6.5, "three blocks, two seconds each, and the latency of the slower one"
    assert tier.end(sink, 6.5).hits == (0, 1, 2)
    assert (len(disk), len(store)) == (2, 3)
    assert tier.begin(fetch, 10.0) == 10.0 + 2.25 + 2.5, "two from the disk, then one from the store"
    assert tier.end(fetch, 4.75).hits == (0, 1, 2)
    assert BelowStack([Below(below(2, block_tokens=1), 1024), store]).leading([b"a", b"b", b"c", b"d"]) == 3


def test_a_disk_for_each_and_a_store_for_all_hit_more_than_either() -> None:
    workload = Workload("mixture", 200, seed=4)
    disk, store = below(1_000), below(shared=True, bytes_per_s=1e11, write="through")
    results = [
        replay(workload, servers=2, device_blocks=128, slots=300, below=tiers)
        for tiers in ((), (disk,), (store,), (disk, store))
    ]
    nothing, only_disk, only_store, both = (result.hit_ratio for result in results)
    assert nothing < only_disk < both
    assert only_store <= both
    for result in results:
        tokens = result.device_tokens + result.host_tokens + result.below_tokens
        assert tokens + result.computed_tokens == result.prompt_tokens
        assert sum(result.missed.values()) == result.computed_tokens


def test_a_disk_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="read_bytes_per_s"):
        below(bytes_per_s=0)
    with pytest.raises(ConfigError, match="latency_s"):
        below(latency_s=-1)
    with pytest.raises(ConfigError, match="at least one block"):
        replay([], below=below(0))


# ---------------------------------------------------------------------- admission


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_admission_stores_less_and_says_what_it_kept_out(mode: Mode) -> None:
    workload = Workload("mixture", 200, seed=4)
    everything = replay(workload, mode=mode, device_blocks=128, slots=600)
    result = replay(workload, mode=mode, device_blocks=128, slots=600, admission="second-use")
    assert result.stored_bytes < everything.stored_bytes
    assert result.not_stored["not_admitted"] > 0
    assert result.missed["not_admitted"] > 0
    assert everything.missed["not_admitted"] == 0
    assert sum(result.missed.values()) == result.computed_tokens
    assert result.host_tokens > 0


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
