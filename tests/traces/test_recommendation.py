"""What is recommended: the same however long the recording, never what makes turns slower, none where none pays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from kvtide.traces import TraceRequest
from kvtide.traces.plan import PlanResult
from kvtide.traces.plan_report import as_json
from kvtide.traces.prices import GIB, GIB_HOUR, Prices
from kvtide.traces.recommendation import Outcome
from kvtide.traces.workloads import Workload
from tests.traces.support_plan import CONFIG, plan

ONE_STEP = 2
"""Sizes double from one to the next."""


@pytest.mark.parametrize(
    ("name", "lengths"), [("mixture", (500, 4000, 16_000)), ("documents", (500, 1000, 4000)), ("chats", (1000, 4000))]
)
def test_the_size_does_not_grow_with_the_length_of_the_recording(name: str, lengths: tuple[int, ...]) -> None:
    sizes = [plan(Workload(name, requests)).recommendation.host_bytes for requests in lengths]
    assert 0 < max(sizes) <= ONE_STEP * min(sizes), sizes


def test_where_no_size_pays_none_does_however_long_the_recording() -> None:
    for requests in (500, 4000):
        result = plan(Workload("mixture", requests), device_bytes=110 * GIB).recommendation
        assert result.host_bytes == 0
        assert result.why.startswith("Buy none. The device serves")


def in_turn(documents: int, rounds: int, every_s: float = 2.0) -> Iterator[TraceRequest]:
    """Documents of 8 blocks that are asked about in turn: a curve with one step, where all of them fit."""
    for number in range(documents * rounds):
        first = 8 * (number % documents)
        yield TraceRequest(number * every_s, tuple(range(first, first + 8)), 8 * 512 + 1, 10)


def test_of_a_curve_with_a_step_the_top_is_taken_and_not_the_foot() -> None:
    result = plan(in_turn(400, 6))  # 3,200 blocks of 64 MiB: 200 GiB
    assert result.recommendation.host_bytes == 256 * GIB
    assert result.recommendation.added_share > 0.8
    at = {point.host_bytes: point.added_share for point in result.curves["prefix"]}
    assert at[128 * GIB] == 0


def test_where_nothing_comes_back_none_is_bought() -> None:
    result = plan(Workload("once", 400)).recommendation
    assert (result.host_bytes, result.added_share) == (0, 0)
    assert result.ttft_ms_after == result.ttft_ms_before
    assert "no prompt begins with a block that an earlier one had" in result.why


def test_where_all_requests_have_the_same_time_nothing_can_be_told() -> None:
    result = plan([TraceRequest(5.0, (1, 2), 1025, 1)] * 3).recommendation
    assert result.host_bytes == 0
    assert "have the same time" in result.why


def test_where_the_link_is_slower_than_computing_none_is_bought() -> None:
    slow = replace(CONFIG.cost, load_bytes_per_s=2e9)
    result = plan(Workload("documents", 400), cost=slow).recommendation
    assert result.host_bytes == 0
    assert result.ttft_ms_after == result.ttft_ms_before
    assert "would make turns slower" in result.why


@pytest.mark.parametrize("name", ["mixture", "chats", "agents", "documents"])
@pytest.mark.parametrize("load_gb_per_s", [4, 6, 12])
def test_no_recommendation_makes_turns_slower(name: str, load_gb_per_s: int) -> None:
    cost = replace(CONFIG.cost, load_bytes_per_s=load_gb_per_s * 1e9)
    result = plan(Workload(name, 400), cost=cost, device_bytes=10 * GIB).recommendation
    assert result.ttft_ms_after <= result.ttft_ms_before


def test_loads_that_make_first_tokens_later_do_not_help() -> None:
    before = Outcome(0.5, 0.0, 0.100)
    assert Outcome(0.5, 0.1, 0.099).helps(before)
    assert not Outcome(0.5, 0.1, 0.101).helps(before)
    assert not Outcome(0.5, 0.0, 0.099).helps(before)


def at_once(every_s: float) -> list[TraceRequest]:
    """Documents of 8,192 tokens, two in turn: computing one takes 230 ms, loading it 20 ms."""
    documents = [tuple(range(first, first + 16)) for first in (0, 100)]
    return [TraceRequest(number * every_s, documents[number % 2], 16 * 512 + 1, 1) for number in range(1500)]


def test_a_server_that_does_not_keep_up_is_told_before_memory_is_bought() -> None:
    room = 17 * 512 * 131_072  # for one document
    lazy, busy, lost = (plan(at_once(every_s), device_bytes=room).recommendation.why for every_s in (0.5, 0.15, 0.01))
    assert "keep up" not in lazy
    assert "Without host memory the server does not keep up at the busiest time" in busy
    assert "Even so the server does not keep up at the busiest time" in lost
    assert "more GPUs" in lost


def test_where_none_is_bought_it_is_told_too_that_a_server_does_not_keep_up() -> None:
    slow = replace(CONFIG.cost, prefill_tokens_per_s=1000.0)
    why = plan(Workload("once", 400), cost=slow).recommendation.why
    assert why.startswith("Buy none: no prompt begins")
    assert "As it is the server does not keep up at the busiest time" in why


def test_what_is_only_extrapolated_is_not_bought_where_a_replay_shows_no_gain() -> None:
    rng = Random(1)
    asked = [rng.randrange(100) for _ in range(70)]  # 560 blocks at most: the device has room for 640
    requests = [
        TraceRequest(float(now_s), tuple(range(8 * one, 8 * one + 8)), 8 * 512 + 1, 1)
        for now_s, one in enumerate(asked)
    ]
    result = plan(requests).recommendation
    assert (result.host_bytes, result.added_share) == (0, 0)
    assert "a replay of this recording" in result.why


def host_bytes(gpu_hour: float, gib_hour: float) -> int:
    result: PlanResult = plan(Workload("documents", 600), prices=Prices(gpu_hour, gib_hour))
    return result.recommendation.host_bytes


def test_dearer_memory_or_cheaper_gpus_make_it_smaller() -> None:
    usual = host_bytes(3.5, GIB_HOUR)
    assert host_bytes(3.5, 20 * GIB_HOUR) < usual
    assert host_bytes(0.1, GIB_HOUR) < usual
    assert host_bytes(3.5, 1000 * GIB_HOUR) == 0
    assert host_bytes(0.0, GIB_HOUR) == 0


def test_a_longer_recording_of_the_same_is_surer() -> None:
    levels = ["low", "medium", "high"]
    short, long = (plan(in_turn(100, rounds)).recommendation.certainty for rounds in (3, 40))
    assert levels.index(short.level) < levels.index(long.level)
    assert short.level == "low"
    assert short.matters_s is not None
    assert short.seen_s < short.matters_s
    assert "the rest is extrapolated" in short.text
    assert "shows all that matters" in long.text
    assert long.level == "high"


def test_where_memory_costs_nothing_every_age_matters_and_the_json_is_valid() -> None:
    result = plan(Workload("once", 60), prices=Prices(3.5, 0.0))
    certain = result.recommendation.certainty
    assert certain.matters_s is None
    assert "every age matters" in certain.text
    json.dumps(as_json(result), allow_nan=False)


def test_halves_that_differ_make_it_unsure() -> None:
    first = list(Workload("once", 600))
    begin_s = first[-1].time_s
    second = [
        replace(one, time_s=begin_s + one.time_s, hashes=tuple(-1 - value for value in one.hashes))
        for one in in_turn(300, 4)
    ]
    certain = plan([*first, *second]).recommendation.certainty
    assert certain.halves_bytes[0] != certain.halves_bytes[1]
    assert certain.level == "low"


def test_only_sizes_that_were_named_are_recommended() -> None:
    result = plan(Workload("documents", 400), sizes=(96 * GIB, 300 * GIB))
    assert result.recommendation.host_bytes in (0, 96 * GIB, 300 * GIB)
    assert [point.host_bytes for point in result.curves["prefix"]] == [96 * GIB, 300 * GIB]
