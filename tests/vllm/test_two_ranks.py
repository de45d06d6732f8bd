"""Two ranks: a key is visible when both have it, and a load is done when both say so (F10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm.elsewhere import results, run_elsewhere
from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.test_round_trip import assert_same, hit

EXPECTED = [hit(tokens) for tokens in PROMPTS[:6]]


@pytest.fixture(scope="module")
def said(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_elsewhere("two_ranks", llama, tmp_path_factory.mktemp("two-ranks") / "loads-fail")


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
