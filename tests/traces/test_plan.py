"""Plans: what host memory adds to the device, curves, and words to act on."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from kvtide.errors import ConfigError
from kvtide.traces import TraceError, TraceRequest
from kvtide.traces.lru_curve import LruCurve
from kvtide.traces.plan import EXACT, PlanResult
from kvtide.traces.plan_report import as_json, conclusion
from kvtide.traces.policy_run import as_keys, run_policy
from kvtide.traces.prices import GIB
from kvtide.traces.recording import make_recording
from kvtide.traces.workloads import Workload
from tests.traces.support_plan import plan


def small(policies: tuple[str, ...] = ("lru", "prefix", "forecast"), **changes: object) -> PlanResult:
    return plan(Workload("mixture", 300), policies=policies, device_bytes=10 * GIB, **changes)


def test_more_memory_never_adds_less_and_all_of_it_adds_all() -> None:
    result = small()
    for policy, points in result.curves.items():
        added = [point.added_share for point in points]
        assert added[-1] == pytest.approx(result.lru_curve[-1][1]), policy
        if policy != "forecast":
            assert added == sorted(added)
    assert result.ttft_s == sorted(result.ttft_s, reverse=True)
    assert result.ttft_s[-1] < result.ttft_without_s


def test_admission_adds_less_where_all_fits_and_has_no_exact_curve() -> None:
    selective = small(("lru",), admission="second-use")
    assert selective.curves["lru"][-1].added_share < small(("lru",)).curves["lru"][-1].added_share
    assert not selective.lru_curve


@pytest.mark.parametrize("policy", EXACT)
def test_policies_that_are_not_run_would_add_the_same_if_they_were(policy: str) -> None:
    prompts = [request.hashes for request in Workload("mixture", 300)]
    on_device = [number % 5 for number in range(len(prompts))]
    curve = LruCurve()
    for prompt, there in zip(prompts, on_device, strict=True):
        curve.add(prompt, there)
    for slots in (50, 300, 900):
        assert run_policy(policy, map(as_keys, prompts), slots, on_device=on_device).hits == curve.hits(slots)


def test_sizes_double_from_about_the_device_up_to_where_all_fits() -> None:
    sizes = [point.host_bytes for point in small(("lru",)).curves["lru"]]
    assert sizes[0] == 8 * GIB
    assert all(after == 2 * before for before, after in pairwise(sizes))
    assert sizes[-1] >= small(("lru",)).unique_bytes > sizes[-1] // 4


def test_without_a_prefix_cache_on_the_device_the_host_adds_all() -> None:
    alone, beside = small(prefix_cache=False), small()
    assert alone.device_share == 0
    assert alone.curves["lru"][-1].added_share == pytest.approx(
        beside.device_share + beside.curves["lru"][-1].added_share, abs=0.01
    )


def test_the_conclusion_names_sizes_shares_times_money_and_certainty() -> None:
    text = conclusion(plan(Workload("documents", 300), device_bytes=10 * GIB))
    for part in (
        r"With \d+ GiB of host memory [\d.]+% of prefill tokens are loaded instead of computed",
        r"besides [\d.]+% that the device serves",
        r"a first token takes [\d.]+ m?s on average instead of [\d.]+ m?s",
        r"saves \$[\d.]+ of GPU time per hour for \$[\d.]+",
        r"Certainty: (high|medium|low)",
        r"its halves alone say",
    ):
        assert re.search(part, text), part


def test_a_better_policy_is_named() -> None:
    result = plan(Workload("mixture", 1200), device_bytes=10 * GIB, sizes=(16 * GIB,), policies=("prefix", "forecast"))
    assert result.recommendation.policy == "prefix"
    assert re.search(r"forecast would add [\d.]+% more than prefix", conclusion(result))


def test_a_size_below_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block, 64 MiB"):
        small(sizes=(1024,))
    with pytest.raises(ConfigError, match="--device"):
        plan([], device_bytes=1024)


def test_prompts_shorter_than_a_block_leave_nothing_to_plan() -> None:
    with pytest.raises(TraceError, match="nothing to cache"):
        plan([TraceRequest(0, (1,), 100, 1)])


def test_requests_larger_than_the_device_are_left_out_and_counted() -> None:
    fits, too_large = TraceRequest(0, (1, 2), 1024, 1), TraceRequest(1, tuple(range(9)), 9 * 512, 1)
    result = plan([fits, too_large], device_bytes=4 * 512 * 131_072)
    assert (result.requests, result.too_large, result.prompt_tokens) == (1, 1, 1024)
    with pytest.raises(TraceError, match="fits into the device"):
        plan([too_large], device_bytes=4 * 512 * 131_072)


def test_a_long_trace_of_small_blocks_is_planned_in_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtide.traces.recording.BLOCKS_MAX", 100)
    requests = [TraceRequest(float(n), tuple(range(21)), 330, 1) for n in range(20)]
    recording = make_recording(requests, 16, 10_000)
    assert recording.block_tokens == 64
    assert recording.visits()[0].hashes == (3, 7, 11, 15, 19)
    assert make_recording(requests, 16, 10_000, exact=True).requests == requests


def test_json_has_every_point_and_the_recommendation() -> None:
    result = small()
    plain = json.loads(json.dumps(as_json(result)))
    assert plain["curves"].keys() == {"lru", "prefix", "forecast"}
    assert plain["curves"]["lru"][0].keys() == {"host_bytes", "added_share", "error"}
    assert plain["conclusion"] == conclusion(result)
    needed = {"host_bytes", "device_share", "added_share", "ttft_ms_before", "ttft_ms_after", "why"}
    assert plain["recommendation"].keys() >= needed
