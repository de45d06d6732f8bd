"""What a plan promises is what a replay of the same requests with the same device and host shows."""

from __future__ import annotations

import pytest

from kvtide.traces import TraceRequest, open_trace
from kvtide.traces.plan import PlanResult
from kvtide.traces.prices import GIB
from kvtide.traces.replay import Replay, ReplayConfig
from kvtide.traces.replay_result import ReplayResult
from kvtide.traces.workloads import Workload
from tests.traces.support_plan import CONFIG, MOONCAKE, plan

POINT = 0.01
"""Plan and replay differ by less than a point of the prompt tokens."""
OVERLOADED_POINTS = 0.03
"""Where requests wait for minutes, memory makes them come at other times, and the device keeps something else."""


def replayed(
    requests: list[TraceRequest], device_bytes: int, host_bytes: int, *, prefix_cache: bool = True
) -> ReplayResult:
    config = ReplayConfig(
        block_tokens=CONFIG.block_tokens,
        bytes_per_token=CONFIG.bytes_per_token,
        device_blocks=device_bytes // CONFIG.block_bytes,
        host_bytes=host_bytes,
        policy="prefix",
        mode="eager",
        cost=CONFIG.cost,
        prefix_cache=prefix_cache,
    )
    return Replay(config).run(requests)


def requests_of(name: str) -> list[TraceRequest]:
    return list(open_trace(MOONCAKE)) if name == "mooncake" else list(Workload(name, 700, seed=5))


@pytest.mark.parametrize("device_gib", [10, 40])
@pytest.mark.parametrize("name", ["mixture", "chats", "documents", "once", "agents", "mooncake"])
def test_shares_and_times_are_those_of_a_replay_at_every_size(name: str, device_gib: int) -> None:
    requests, device = requests_of(name), device_gib * GIB
    sizes = [device // 2, 2 * device, 16 * device]
    result = plan(requests, device_bytes=device, sizes=sizes)
    bound = OVERLOADED_POINTS if name == "agents" else POINT
    for point, ttft_s in zip(result.curves["prefix"], result.ttft_s, strict=True):
        truth = replayed(requests, device, point.host_bytes)
        assert result.device_share == pytest.approx(truth.share(truth.device_tokens), abs=bound)
        assert point.added_share == pytest.approx(truth.share(truth.host_tokens), abs=bound)
        if name != "agents":
            assert ttft_s == pytest.approx(truth.ttft_mean_s, rel=0.05)


def recommended_agrees(result: PlanResult, requests: list[TraceRequest], device: int) -> None:
    chosen = result.recommendation
    before, after = replayed(requests, device, 0), replayed(requests, device, chosen.host_bytes)
    assert chosen.device_share == pytest.approx(after.share(after.device_tokens))
    assert chosen.added_share == pytest.approx(after.share(after.host_tokens))
    assert chosen.ttft_ms_before == pytest.approx(1000 * before.ttft_mean_s)
    assert chosen.ttft_ms_after == pytest.approx(1000 * after.ttft_mean_s)


@pytest.mark.parametrize("name", ["mixture", "chats", "documents", "once", "agents", "mooncake"])
def test_what_is_recommended_is_what_its_replay_shows(name: str) -> None:
    requests = requests_of(name)
    recommended_agrees(plan(requests, device_bytes=20 * GIB), requests, 20 * GIB)


def test_the_host_adds_nothing_where_a_replay_shows_nothing() -> None:
    requests = list(Workload("mixture", 700))
    result = plan(requests, sizes=(16 * GIB, 32 * GIB))
    assert replayed(requests, 40 * GIB, 16 * GIB).host_tokens == 0
    assert result.curves["prefix"][0].added_share < 0.001
    assert result.recommendation.host_bytes == 0
    assert result.recommendation.added_share == 0


def test_what_is_still_being_computed_for_another_request_is_not_found_on_the_host() -> None:
    requests = [TraceRequest(0.001 * number, tuple(range(40)), 40 * 512 + 1, 1) for number in range(5)]
    sizes = (16 * GIB, 64 * GIB)
    assert all(replayed(requests, 40 * GIB, size).host_tokens == 0 for size in sizes)
    assert [point.added_share for point in plan(requests, sizes=sizes).curves["prefix"]] == [0, 0]


def test_a_replay_without_host_memory_loads_nothing_and_keeps_the_devices_share() -> None:
    requests = list(Workload("mixture", 300))
    without = replayed(requests, 10 * GIB, 0)
    tiny = replayed(requests, 10 * GIB, CONFIG.block_bytes)
    assert without.host_tokens == 0
    assert without.share(without.device_tokens) == pytest.approx(tiny.share(tiny.device_tokens), abs=POINT)


def test_a_replay_without_a_prefix_cache_finds_everything_on_the_host() -> None:
    requests = list(Workload("mixture", 300))
    result = replayed(requests, 10 * GIB, 512 * GIB, prefix_cache=False)
    assert result.device_tokens == 0
    with_cache = replayed(requests, 10 * GIB, 512 * GIB)
    assert result.hit_ratio == pytest.approx(with_cache.hit_ratio, abs=POINT)
