"""A small demo in each variation: offloading saves work and changes no token."""

from __future__ import annotations

from typing import Any

import pytest

from kvtide.demo import Comparison, compare_modes
from kvtide.demo.compare import RUNS
from tests.demo.support import tiny


def run(**changes: Any) -> Comparison:
    return compare_modes(tiny(**changes), lambda run, done: None)


VARIATIONS: list[dict[str, Any]] = [
    {},
    {"ranks": 2},
    {"window": 16, "device_blocks": 24},
    {"window": 16, "device_blocks": 24, "ranks": 2},
    {"concurrency": 3},
    {"policy": "lru"},
    {"seed": 5, "block_tokens": 16},
]


@pytest.mark.parametrize("changes", VARIATIONS, ids=str)
def test_offloading_changes_no_token_and_saves_prefill(changes: dict[str, Any]) -> None:
    comparison = run(**changes)
    results = comparison.results
    assert comparison.identical_outputs
    assert results["eager"].loaded_tokens > 0
    assert results["eager"].prefill_tokens < results["none"].prefill_tokens
    assert results["eager"].hit_ratio > results["none"].hit_ratio


def test_eager_computes_at_least_what_an_unlimited_device_does_and_less_than_a_small_one() -> None:
    """How much less depends on how fast copies are beside compute: on a busy machine some blocks come too late."""
    results = run().results
    assert results["unlimited"].prefill_tokens <= results["eager"].prefill_tokens < results["none"].prefill_tokens
    assert results["unlimited"].hit_ratio >= results["eager"].hit_ratio


def test_a_host_of_one_block_costs_hits_and_nothing_else() -> None:
    comparison = run(host=128 * 1024)
    assert comparison.identical_outputs
    assert comparison.results["eager"].prefill_tokens <= comparison.results["none"].prefill_tokens


def test_every_turn_is_measured_and_only_follow_up_turns_count_for_ttft() -> None:
    result = run().results["eager"]
    assert [len(replies) for replies in result.replies] == [3, 3, 3]
    assert len(result.ttft_ms) == 3 * 2
    assert 0 < result.ttft_ms_at(50) <= result.ttft_ms_at(95)


def test_progress_counts_every_turn_of_every_run() -> None:
    told: list[tuple[str, int]] = []
    compare_modes(tiny(), lambda run, done: told.append((run, done)))
    assert told == [(run, done) for run in RUNS for done in range(10)]


def test_a_single_different_token_is_found_where_it_is() -> None:
    comparison = run()
    reply = comparison.results["lazy"].replies[1][2]
    comparison.results["lazy"].replies[1][2] = (*reply[:-1], reply[-1] ^ 1)
    assert not comparison.identical_outputs
    assert comparison.first_difference("eager") is None
    assert comparison.first_difference("lazy") == (1, 2)
