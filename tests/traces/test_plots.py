"""Pictures: axes have titles, the gain over the device is the main curve, what is recommended is marked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtide.traces import plots
from kvtide.traces.plan import PlanResult
from kvtide.traces.plots import COLOURS, draw_plan, draw_replay, figure
from kvtide.traces.prices import GIB
from kvtide.traces.replay import Replay, ReplayConfig
from kvtide.traces.workloads import Workload
from kvtide.units import size_text
from tests.traces.support_plan import plan, preset


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of what is drawn from now on."""
    axes: list[Any] = []

    def kept(*given: Any) -> tuple[Any, Any]:
        drawing, both = figure(*given)
        axes.extend(both)
        return drawing, both

    monkeypatch.setattr(plots, "figure", kept)
    return axes


def words(axis: Any) -> list[str]:
    return [text.get_text() for text in (*axis.texts, axis.title, axis._left_title)]


def plan_for(requests: int, device_bytes: int) -> PlanResult:
    return plan(Workload("mixture", requests), policies=("lru", "prefix", "forecast"), device_bytes=device_bytes)


def test_a_plan_is_drawn_as_gain_and_ttft_with_what_is_recommended(drawn: list[Any], tmp_path: Path) -> None:
    result = plan_for(300, 10 * GIB)
    draw_plan(result, "a trace", tmp_path / "plan.png")
    gain, ttft = drawn
    assert gain.get_ylabel().startswith("prompt tokens added to the ")
    assert ttft.get_ylabel() == "mean time to first token, ms"
    chosen = result.recommendation.host_bytes
    for axis in drawn:
        assert axis.get_xlabel() == "host memory, GiB (log scale)"
        assert axis.get_ylim()[0] == 0
        assert f"recommended: {size_text(chosen)}" in words(axis)
        assert [chosen / GIB] * 2 in [list(line.get_xdata()) for line in axis.lines]
    labels = [text.get_text() for text in gain.get_legend().get_texts()]
    assert labels[0] == "prefix, lru"  # the same line is drawn once
    assert [label.split(",")[0] for label in labels] == ["prefix", "forecast"]
    main = max(gain.lines, key=lambda line: line.get_linewidth())
    assert main.get_color() == COLOURS[0]
    assert max(main.get_ydata()) == pytest.approx(100 * result.curves["prefix"][-1].added_share)
    assert list(ttft.lines[0].get_ydata()) == [1000 * ttft_s for ttft_s in result.ttft_s]


def test_times_that_are_far_apart_are_drawn_on_a_logarithmic_scale(drawn: list[Any], tmp_path: Path) -> None:
    result = plan(Workload("mixture", 200))
    far = replace(result, ttft_without_s=168.0, ttft_s=[2.5 for _ in result.ttft_s])
    draw_plan(far, "a trace", tmp_path / "plan.png")
    _, ttft = drawn
    assert ttft.get_yscale() == "log"
    assert ttft.get_ylabel() == "mean time to first token, s (log scale)"
    low, high = ttft.get_ylim()
    assert 0 < low < 2.5
    assert high > 168


def test_sizes_that_lie_close_together_are_not_written_over_each_other(drawn: list[Any], tmp_path: Path) -> None:
    sizes = tuple(size * GIB for size in (1, 100, 101, 102, 110, 1000))
    draw_plan(plan(Workload("mixture", 40), sizes=sizes), "a trace", tmp_path / "plan.png")
    for axis in drawn:
        assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "100", "1000"]


def test_a_plan_that_recommends_none_says_so(drawn: list[Any], tmp_path: Path) -> None:
    result = plan_for(40, 900 * GIB)
    assert not result.recommendation.host_bytes
    draw_plan(result, "a trace", tmp_path / "plan.png")
    for axis in drawn:
        assert "recommended: none" in words(axis)


def test_a_replay_is_drawn_with_shares_in_words_and_times_that_most_requests_keep(
    drawn: list[Any], tmp_path: Path
) -> None:
    config = ReplayConfig(
        block_tokens=512,
        bytes_per_token=131_072,
        device_blocks=160,
        host_bytes=40 * GIB,
        policy="prefix",
        mode="eager",
        cost=preset("h200"),
    )
    result = Replay(config).run(Workload("mixture", 200))
    draw_replay(result, "a trace", tmp_path / "replay.png")
    shares, times = drawn
    assert shares.get_xlabel() == "time, s"
    assert shares.get_ylabel() == "prompt tokens by where they came from, %"
    assert times.get_xlabel() == "time to first token, s (log scale)"
    assert f"host, {result.share(result.host_tokens):.1%}" in [
        one.get_text() for one in shares.get_legend().get_texts()
    ]
    assert times.get_legend().get_texts()[0].get_text().startswith("50% within ")
