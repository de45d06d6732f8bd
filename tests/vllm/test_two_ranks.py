"""Two ranks: a key is visible when both have it, and a load is done when both say so (F10)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import Result
from tests.vllm.test_round_trip import assert_same, hit

EXPECTED = [hit(tokens) for tokens in PROMPTS[:6]]


@pytest.fixture(scope="module")
def said(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run in a process of its own: worker processes and their environment are none of this one's business."""
    file = tmp_path_factory.mktemp("two-ranks") / "loads-fail"
    command = [sys.executable, "-m", "tests.vllm.two_ranks", str(llama), str(file)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def results(said: Any) -> list[Result]:
    return [Result(tuple(tokens), tuple(logprobs), 0) for tokens, logprobs in said["results"]]


def test_two_ranks_store_and_load(said: Any, llama_says: Says) -> None:
    assert said["ranks"] == 2
    for turn in ("computed", "loaded"):
        assert_same(results(said[turn]), llama_says(*PROMPTS[:6]))
    assert said["loaded"]["cached"] == EXPECTED
    assert said["loaded"]["loaded_tokens"] == sum(EXPECTED)
    assert said["loaded"]["loads_failed"] == 0


def test_f10_a_load_that_fails_on_one_rank_is_computed_on_both(said: Any, llama_says: Says) -> None:
    assert_same(results(said["failed"]), llama_says(*PROMPTS[:6]))
    assert said["failed"]["loads_failed"] == 6
    assert said["failed"]["loaded_tokens"] == 0
