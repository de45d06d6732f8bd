"""Two ranks: a key is visible when both have it, and a load is done when both say so (F10)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import Result
from tests.vllm.test_round_trip import assert_same, hit


def run(model: Path, *flags: str) -> Any:
    """Run in a process of its own: worker processes and their environment are none of this one's business."""
    command = [sys.executable, "-m", "tests.vllm.two_ranks", str(model), *flags]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def results(said: list[Any]) -> list[Result]:
    return [Result(tuple(tokens), tuple(logprobs), 0) for tokens, logprobs in said]


def test_two_ranks_store_and_load(llama: Path, llama_says: Says) -> None:
    said = run(llama)
    prompts = PROMPTS[:6]
    assert said["ranks"] == 2
    assert_same(results(said["first"]), llama_says(*prompts))
    assert_same(results(said["again"]), llama_says(*prompts))
    assert said["cached"] == [hit(tokens) for tokens in prompts]
    assert said["loaded_tokens"] == sum(said["cached"])


def test_f10_a_load_that_fails_on_one_rank_is_computed_on_both(llama: Path, llama_says: Says) -> None:
    said = run(llama, "fail-rank-1")
    prompts = PROMPTS[:6]
    assert_same(results(said["again"]), llama_says(*prompts))
    assert said["loads_failed"] > 0
    assert said["loaded_tokens"] == 0
