"""What counters and gauges mean."""

from __future__ import annotations

import pytest

from kvtide.top.counts import Counts
from kvtide.top.figures import Figures, Tokens, figures
from kvtide.top.reading import parse
from kvtide.top.state import state
from tests.top.fake import BUSY, RECORDED, metrics


def since_start(**numbers: float | dict[str, float]) -> Figures:
    counters = parse(metrics(**numbers)).counters
    return figures(counters, None, counters)


def test_shares_of_levels_add_up_and_fetched_blocks_are_those_of_tiers() -> None:
    tokens = since_start(**BUSY).tokens
    assert tokens == Tokens(device=5000, host=2250, tiers=750, computed=2000)
    assert [tokens.share(level) for level in ("device", "host", "tiers", "computed")] == [0.5, 0.225, 0.075, 0.2]


def test_older_servers_say_less_and_the_shares_are_the_same() -> None:
    older = {**BUSY, "prefix_cache_queries_total": 10_000, "prefix_cache_hits_total": 5000}
    del older["prompt_tokens_by_source_total"]
    assert since_start(**older).tokens == since_start(**BUSY).tokens


def test_no_more_comes_from_tiers_than_was_loaded() -> None:
    assert since_start(**{**BUSY, "kvtide_fetched_blocks_total": 500}).tokens.tiers == 3000


def test_without_requests_no_share_is_known() -> None:
    shown = since_start(kvtide_slots=5)
    assert shown.tokens.share("device") is None
    assert shown.ttft_ms is None
    assert shown.ttft_saved_ms is None


def test_what_loading_saved_is_what_computing_would_have_cost_less_the_copies() -> None:
    # 2.1 s of prefill, of which 10 steps of 10 ms are not for tokens: 1 ms for each of 2,000 that were computed.
    # 3,000 were loaded: 3 s less 1 s of copying, for 10 requests.
    assert since_start(**BUSY).ttft_saved_ms == pytest.approx(200)
    assert since_start(**BUSY).ttft_ms == 400


def test_loads_that_took_longer_than_computing_are_a_loss() -> None:
    slow = since_start(**{**BUSY, "kvtide_transfer_seconds_sum": {'direction="load"': 5.0}})
    assert slow.ttft_saved_ms == pytest.approx(-200)


def test_what_a_token_costs_is_known_from_before_when_nothing_was_computed_lately() -> None:
    start = parse(metrics(**BUSY)).counters
    lately = parse(metrics(time_to_first_token_seconds_count=1, kvtide_loaded_tokens_total=500)).counters
    assert figures(lately, 2.0, start).ttft_saved_ms == pytest.approx(500)


def test_rates_need_seconds() -> None:
    counters = parse(metrics(**BUSY)).counters
    assert figures(counters, None, counters).rate(10) is None
    assert figures(counters, 4.0, counters).rate(10) == 2.5


def test_reasons_come_with_the_most_frequent_first_and_without_those_that_did_not_occur() -> None:
    assert list(since_start(**BUSY).not_loaded.items()) == [("not_cached", 1800), ("last_token", 200)]


def test_tiers_are_those_that_the_server_names() -> None:
    assert since_start(**BUSY).tiers["disk"].found_keys == 50
    now = state(parse(metrics(**BUSY)))
    assert list(now.tiers) == ["disk", "valkey"]
    assert now.tiers["disk"].fill == 0.25
    assert now.tiers["valkey"].fill is None


def test_a_tier_that_is_off_on_one_rank_is_off() -> None:
    off = {'tier="disk",rank="0"': 0.0, 'tier="disk",rank="1"': 1.0}
    assert state(parse(metrics(**{**BUSY, "kvtide_tier_off": off}))).tiers["disk"].off_ranks == ("1",)


def test_the_size_of_the_pool_comes_from_the_bytes_of_stored_blocks() -> None:
    pool = state(parse(RECORDED)).pool
    assert pool.bytes == 16 << 20  # as the server was started
    assert pool.fill == 1 - 193 / 256
    assert state(parse(metrics(kvtide_slots=8, kvtide_slots_free=8))).pool.bytes is None
    assert state(parse(metrics(num_requests_running=1))).pool.fill is None


def test_sums_over_nothing_are_nothing() -> None:
    assert Counts().total("vllm:any") == 0
    assert Counts().by("vllm:any", "label") == {}
