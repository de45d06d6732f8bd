"""Plans: curves, the knee, and a sentence to act on."""

from __future__ import annotations

import json
import re

import pytest

from kvtide.errors import ConfigError
from kvtide.traces import TraceError, TraceRequest
from kvtide.traces.cost import PRESETS
from kvtide.traces.plan import PlanConfig, PlanResult, Point, default_sizes, knee, make_plan
from kvtide.traces.plan_page import plan_page
from kvtide.traces.plan_report import as_json, conclusion
from kvtide.traces.workloads import Workload

GIB = 1 << 30


def plan(policies: tuple[str, ...] = ("lru", "prefix", "forecast"), sizes: tuple[int, ...] = ()) -> PlanResult:
    config = PlanConfig(block_tokens=512, bytes_per_token=131_072, policies=policies, sizes=sizes, cost=PRESETS["h200"])
    return make_plan(Workload("mixture", 300), config)


def test_more_memory_never_hits_less_and_all_of_it_hits_all() -> None:
    result = plan()
    for policy, points in result.curves.items():
        hits = [point.hit_ratio for point in points]
        assert hits[-1] == pytest.approx(result.lru_curve[-1][1]), policy
        if policy != "forecast":
            assert hits == sorted(hits)
    ttft_s = [point.ttft_s for point in result.curves["lru"]]
    assert ttft_s == sorted(ttft_s, reverse=True)
    assert ttft_s[0] < result.ttft_without_s


def test_admission_hits_less_where_all_fits_and_has_no_exact_curve() -> None:
    config = PlanConfig(
        block_tokens=512, bytes_per_token=131_072, policies=("lru",), cost=PRESETS["h200"], admission="second-use"
    )
    selective = make_plan(Workload("mixture", 300), config)
    assert selective.curves["lru"][-1].hit_ratio < plan(("lru",)).curves["lru"][-1].hit_ratio
    assert not selective.lru_curve
    assert "lru" in conclusion(selective)


def test_prefix_aware_hits_what_lru_hits() -> None:
    result = plan()
    assert [point.hit_ratio for point in result.curves["prefix"]] == pytest.approx(
        [point.hit_ratio for point in result.curves["lru"]]
    )


def test_sizes_double_up_to_where_all_fits() -> None:
    sizes = default_sizes(1000 * GIB, GIB)
    assert sizes == [(8 << step) * GIB for step in range(8)]
    assert default_sizes(3, 1) == [1, 2, 4]


def test_the_knee_is_where_the_curve_bends() -> None:
    points = [Point(size * GIB, hit, 0, 0) for size, hit in ((1, 0.1), (2, 0.3), (4, 0.5), (8, 0.52), (16, 0.53))]
    assert knee(points).host_bytes == 4 * GIB
    assert knee(points[:1]) is points[0]
    flat = [Point(size * GIB, 0.2, 0, 0) for size in (1, 2, 4)]
    assert knee(flat) is flat[0]


def test_the_conclusion_names_size_share_and_what_doubling_adds() -> None:
    curves = {"lru": [Point(size * GIB, hit, 0, 0.5) for size, hit in ((128, 0.1), (256, 0.31), (512, 0.35))]}
    result = PlanResult(10, 1000, 1, curves, [], 0.9)
    assert conclusion(result) == (
        "With 256 GiB of host memory 31% of prefill tokens are loaded instead of computed (policy lru), and a first "
        "token takes 500 ms on average instead of 900 ms; doubling it adds 4 points."
    )


def test_the_last_size_says_that_no_more_was_tried() -> None:
    result = PlanResult(10, 1000, 1, {"lru": [Point(GIB, 0.1, 0, 0.5)]}, [], 0.9)
    assert conclusion(result).endswith("; more memory was not tried.")


def test_a_size_below_one_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block, 67108864 bytes"):
        plan(sizes=(1024,))


def test_prompts_shorter_than_a_block_leave_nothing_to_plan() -> None:
    config = PlanConfig(block_tokens=512, bytes_per_token=1, policies=("lru",), cost=PRESETS["h200"])
    with pytest.raises(TraceError, match="nothing to cache"):
        make_plan([TraceRequest(0, (1,), 100, 1)], config)


def test_the_page_needs_nothing_else_and_escapes_names() -> None:
    result = plan(("lru",))
    page = plan_page(result, "<script>alert(1)</script>", "a & b", "notes")
    assert "<script>alert" not in page
    assert "a &amp; b" in page
    assert not re.search(r"https?://|<link|src=|@import|url\(", page)
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["knee"] == result.knee.host_bytes
    assert [curve["policy"] for curve in data["curves"]] == ["lru"]
    assert len(data["curves"][0]["texts"]) == len(data["sizes"])


def test_json_has_every_point() -> None:
    result = plan()
    plain = json.loads(json.dumps(as_json(result)))
    assert plain["curves"].keys() == {"lru", "prefix", "forecast"}
    assert plain["curves"]["lru"][0].keys() == {"host_bytes", "hit_ratio", "error", "ttft_s"}
    assert plain["conclusion"] == conclusion(result)
