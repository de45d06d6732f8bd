"""What is on /metrics, with one API server and with several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
from prometheus_client import Counter, Gauge, Histogram
from vllm.v1.metrics.prometheus import unregister_vllm_metrics

from kvtide.copy import Direction, Traffic
from kvtide.core import Metrics, NotLoaded, NotStored
from kvtide.latency import LATENCY_BOUNDS_S, Latencies
from kvtide.tiers import TierStats, parse_tiers
from kvtide.vllm.prometheus import PromMetrics
from kvtide.vllm.stats import RankStats, StepStats, summary

TYPES: dict[type, type] = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
ENGINE = {"model_name": "m", "engine": "0"}


def make(*tiers: str) -> PromMetrics:
    extra = {"tiers": [{"type": type_} for type_ in tiers]}
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))
    return PromMetrics(config, TYPES, ["model_name", "engine"], {0: ["m", "0"]})


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    unregister_vllm_metrics()
    yield
    unregister_vllm_metrics()


def value(name: str, **labels: str) -> float | None:
    return prometheus_client.REGISTRY.get_sample_value(f"vllm:kvtide_{name}", {**ENGINE, **labels})


def test_every_counter_is_there_from_the_start_with_every_label() -> None:
    make("disk")
    assert value("loads_failed_total") == 0
    assert [value("not_stored_total", reason=reason.value) for reason in NotStored] == [0] * len(NotStored)
    assert value("tier_keys_total", tier="disk", call="put", outcome="failed") == 0
    assert value("tier_corrupt_records_total", tier="disk") == 0
    assert value("transfer_seconds_count", direction="load") == 0
    assert value("tier_seconds_bucket", tier="disk", call="get", le="0.05") == 0


def test_tiers_have_names_and_two_of_one_type_their_positions() -> None:
    make("disk", "valkey", "valkey")
    names = [value("tier_corrupt_records_total", tier=name) for name in ("disk", "valkey-1", "valkey-2", "valkey", "0")]
    assert names == [0, 0, 0, None, None]


def test_times_are_what_was_counted_and_nothing_is_made_up() -> None:
    shown = make("disk")
    rank = RankStats(0)
    slow = Latencies().plus(0.03).plus(0.05).plus(0.06).plus(99.0)
    rank.copied(Direction.LOAD, Traffic(2, 100, Latencies().plus(0.004).plus(0.3)))
    told = rank.take(lambda: {"disk": TierStats(seconds={"get": slow})})
    assert told is not None
    shown.observe(json.loads(json.dumps(told.to_dict())))
    edges = [value("tier_seconds_bucket", tier="disk", call="get", le=le) for le in ("0.025", "0.05", "0.1", "+Inf")]
    assert edges == [0, 2, 3, 4]
    assert value("tier_seconds_sum", tier="disk", call="get") == pytest.approx(99.14)
    assert value("transfer_seconds_count", direction="load") == 2
    assert value("transfer_seconds_sum", direction="load") == pytest.approx(0.304)
    assert value("transfers_total", direction="load") == 2


def test_only_news_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtide.vllm.stats.INTERVAL_S", 0.0)
    shown, rank = make("disk"), RankStats(0)
    seconds = Latencies()
    for call in range(1, 4):
        seconds = seconds.plus(0.01 * call)
        told = rank.take(lambda seconds=seconds: {"disk": TierStats(seconds={"put": seconds})})  # type: ignore[misc]
        assert told is not None
        shown.observe(told.to_dict())
    assert value("tier_seconds_count", tier="disk", call="put") == 3
    assert value("tier_seconds_sum", tier="disk", call="put") == pytest.approx(0.06)


def test_ranks_add_up() -> None:
    ranks = [RankStats(rank) for rank in range(2)]
    for rank in ranks:
        rank.copied(Direction.STORE, Traffic(1, 10, Latencies().plus(0.2)))
    first, second = (rank.take(dict) for rank in ranks)
    assert first is not None
    assert second is not None
    joined = first.aggregate(StepStats(json.loads(json.dumps(second.to_dict()))))
    shown = make()
    shown.observe(joined.to_dict())
    assert value("transfer_seconds_bucket", direction="store", le="0.25") == 2
    assert value("transfer_bytes_total", direction="store") == 20


def test_what_packing_saves_and_what_does_not_pack_is_shown() -> None:
    shown, rank = make(), RankStats(0)
    seconds = Latencies().plus(0.2)
    rank.copied(Direction.STORE, Traffic(1, 30, seconds, saved_bytes=10, unpacked_blocks=2))
    rank.copied(Direction.LOAD, Traffic(1, 15, seconds, saved_bytes=5))
    rank.copied(Direction.LOAD, Traffic(2, 45, seconds, saved_bytes=15))
    told = rank.take(dict)
    assert told is not None
    shown.observe(told.to_dict())
    assert value("packing_saved_bytes_total", direction="store") == 10
    assert value("packing_saved_bytes_total", direction="load") == 15
    assert value("unpacked_blocks_total") == 2


def test_there_is_an_edge_at_the_default_deadline_of_every_type(tmp_path: Path) -> None:
    places: list[dict[str, Any]] = [
        {"type": "disk", "path": str(tmp_path), "size": "1MiB"},
        {"type": "valkey", "url": "valkey://localhost"},
        {"type": "mooncake", "master": "localhost:1"},
        {"type": "null"},
    ]
    assert {config.deadline_ms / 1000 for config in parse_tiers(places)} <= set(LATENCY_BOUNDS_S)


def test_the_last_line_keeps_blocks_and_tokens_apart() -> None:
    """Some reasons have the same name on both sides."""
    metrics = Metrics(requests=3)
    assert summary(metrics).endswith("; blocks not stored: none; tokens not loaded: none")
    metrics.not_stored.update({NotStored.RESET: 2, NotStored.HOST_FULL: 5})
    metrics.not_loaded.update({NotLoaded.RESET: 64})
    assert summary(metrics).endswith("; blocks not stored: 5 host_full, 2 reset; tokens not loaded: 64 reset")


SEVERAL = """
import os, sys
from types import SimpleNamespace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from kvtide.vllm.prometheus import PromMetrics
extra = {"tiers": [{"type": "disk"}]}
config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))
shown = PromMetrics(config, {Gauge: Gauge, Counter: Counter, Histogram: Histogram}, ["engine"], {0: ["0"]})
buckets = [0] * 15
buckets[int(sys.argv[1])] = 2
shown.observe({"counters": {"stored_blocks": 5}, "seconds": {"tier_seconds/disk/get": [*buckets, 0.5]}})
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_several_api_servers_show_the_sum_of_what_they_know(tmp_path: Path) -> None:
    shown = ""
    for bucket in ("7", "8"):
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        command = [sys.executable, "-c", SEVERAL, bucket]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        assert done.returncode == 0, done.stderr
        shown = done.stdout
    lines = shown.splitlines()
    get = 'call="get",engine="0"'
    assert f'vllm:kvtide_tier_seconds_bucket{{{get},le="0.05",tier="disk"}} 2.0' in lines
    assert f'vllm:kvtide_tier_seconds_bucket{{{get},le="0.1",tier="disk"}} 4.0' in lines
    assert f'vllm:kvtide_tier_seconds_count{{{get},tier="disk"}} 4.0' in lines
    assert f'vllm:kvtide_tier_seconds_sum{{{get},tier="disk"}} 1.0' in lines
    assert 'vllm:kvtide_stored_blocks_total{engine="0"} 10.0' in lines
    assert 'vllm:kvtide_not_loaded_total{engine="0",reason="reset"} 0.0' in lines
