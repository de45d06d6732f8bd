"""Two ranks that hold the same KV, on real vLLM: one copy on the host, written once, loaded by both (F27)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm.digests import by_key
from tests.vllm.elsewhere import results, run_elsewhere
from tests.vllm.fixtures import PROMPTS
from tests.vllm.llm import engine
from tests.vllm.test_round_trip import assert_same, hit

EXPECTED = [hit(tokens) for tokens in PROMPTS[:4]]
HOST = "4MiB"


@pytest.fixture(scope="module")
def alone(one_head: Path) -> dict[str, Any]:
    """What one rank says, and takes."""
    with engine(one_head, options={"host": HOST}) as offloading:
        results = offloading.generate(*PROMPTS[:4])
        offloading.drain()
        config = offloading.side.config
        cached = offloading.manager.gauges().slots_cached
        return {"results": results, "slots": config.slots, "host_bytes": config.host_bytes, "slots_cached": cached}


@pytest.fixture(scope="module")
def said(one_head: Path) -> Any:
    return run_elsewhere("same_kv", one_head, HOST, timeout_s=600)


def test_f27_two_ranks_say_what_one_says_computed_and_loaded(said: Any, alone: dict[str, Any]) -> None:
    for turn in ("computed", "loaded"):
        assert_same(results(said[turn]), alone["results"])
        assert said[turn]["failed"] == [0, 0]
    assert said["loaded"]["cached"] == EXPECTED
    assert said["loaded"]["loaded_tokens"] == sum(EXPECTED)


def test_f27_the_host_memory_of_two_ranks_is_that_of_one(said: Any, alone: dict[str, Any]) -> None:
    assert (said["slots"], said["host_bytes"]) == (alone["slots"], alone["host_bytes"])
    assert said["computed"]["slots_cached"] == alone["slots_cached"]
    ranks = said["computed"]["ranks"]
    assert [(rank["slots"], rank["bytes"]) for rank in ranks] == [(alone["slots"], alone["host_bytes"])] * 2
    assert len({rank["inode"] for rank in ranks}) == 1, "it is the same memory"
    assert all("memfd:kvtide (deleted)" in rank["path"] for rank in ranks)
    assert sum(rank["proportional_bytes"] for rank in ranks) <= alone["host_bytes"]


def test_f27_every_byte_is_written_once_and_loaded_by_both(said: Any) -> None:
    stored_bytes = said["computed"]["slots_cached"] * said["block_bytes"]
    assert sum(rank["stored_bytes"] for rank in said["computed"]["ranks"]) == stored_bytes
    assert all(rank["stored_bytes"] > stored_bytes // 4 for rank in said["computed"]["ranks"])
    loaded_bytes = sum(EXPECTED) // said["block_tokens"] * said["block_bytes"]
    assert [rank["loaded_bytes"] for rank in said["loaded"]["ranks"]] == [loaded_bytes] * 2


@pytest.mark.parametrize("turn", ["computed", "loaded"])
def test_f27_the_bytes_on_the_host_are_those_of_either_rank(said: Any, turn: str) -> None:
    first, second = said[turn]["ranks"]
    assert first["on_host"] == second["on_host"]
    assert len(first["on_host"]) == said["computed"]["slots_cached"]
    for rank in (first, second):
        assert set(rank["on_host"]) <= set(rank["on_device"])


@pytest.mark.parametrize("rank", [0, 1])
def test_f27_either_rank_loads_for_each_key_the_bytes_that_it_had_computed(said: Any, rank: int) -> None:
    """Answers would not tell: attention does not care in which order the blocks of a prompt lie."""
    computed, loaded = (
        by_key(said[turn]["keys"], said[turn]["ranks"][rank]["on_device"]) for turn in ("computed", "loaded")
    )
    assert loaded == computed
    assert len(loaded) >= sum(EXPECTED) // said["block_tokens"]
