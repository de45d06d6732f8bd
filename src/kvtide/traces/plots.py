"""PNG plots. matplotlib is an optional extra, imported only when a plot is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from kvtide.traces.errors import TraceError
from kvtide.traces.plan import PlanResult
from kvtide.traces.replay_result import ReplayResult
from kvtide.units import size_text

COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774", "#b59b00")
_SLICES = 60
_SOURCES = ("device", "host", "below", "computed")
_SOURCE_COLOURS = ("#0b6e99", "#7fb7cf", "#d9a66b", "#e3e2e0")


def figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """Return a matplotlib figure and its axes, without a screen."""
    try:
        agg = importlib.import_module("matplotlib.backends.backend_agg")
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise TraceError("plots need matplotlib: pip install 'kvtide[plot]'") from None
    drawing = figures.Figure(figsize=(width, height), layout="constrained")
    agg.FigureCanvasAgg(drawing)
    axes = drawing.subplots(1, columns)
    for axis in axes if columns > 1 else (axes,):
        axis.grid(visible=True, alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return drawing, axes


def draw_plan(plan: PlanResult, title: str, path: Path) -> None:
    """Draw what host memory adds against its size, with what is recommended."""
    drawing, axis = figure(9, 5)
    smallest = min(points[0].host_bytes for points in plan.curves.values())
    largest = max(points[-1].host_bytes for points in plan.curves.values())
    whole = [(size, hit) for size, hit in plan.lru_curve if smallest <= size <= largest]
    for colour, (policy, points) in zip(COLOURS * 2, plan.curves.items(), strict=False):
        sizes, hits = [point.host_bytes for point in points], [100 * point.added_share for point in points]
        if policy == "lru" and whole:
            axis.plot([size for size, _ in whole], [100 * hit for _, hit in whole], color=colour, label=policy)
            axis.plot(sizes, hits, "o", color=colour, markersize=4)
        else:
            errors = [100 * point.error for point in points]
            axis.errorbar(sizes, hits, yerr=errors, fmt="o-", color=colour, markersize=4, capsize=2, label=policy)
    chosen = plan.recommendation.host_bytes
    if chosen:
        axis.axvline(chosen, color="#787774", linestyle="--", linewidth=1)
        axis.annotate(
            f"recommended: {size_text(chosen)}",
            (chosen, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
        )
    axis.set_xscale("log", base=2)
    sizes = [point.host_bytes for point in next(iter(plan.curves.values()))]
    axis.set_xticks(sizes, [size_text(size) for size in sizes])
    axis.set_ylim(bottom=0)
    axis.set(title=title, xlabel="host memory", ylabel="prompt tokens added to what the device serves, %")
    axis.legend(frameon=False)
    drawing.savefig(path, dpi=130, format="png")


def draw_replay(result: ReplayResult, title: str, path: Path) -> None:
    """Draw where tokens came from over time, and the distribution of the time to first token."""
    drawing, (left, right) = figure(12, 4.5, columns=2)
    times, shares = _shares_over_time(result)
    left.stackplot(times, *shares, labels=_SOURCES, colors=_SOURCE_COLOURS)
    left.set(title=title, xlabel="time, s", ylabel="prompt tokens, %", ylim=(0, 100))
    left.legend(loc="upper right", frameon=True)
    count = len(result.ttft_s)
    right.plot(result.ttft_s, [100 * (index + 1) / count for index in range(count)], color=COLOURS[0])
    right.set(title="time to first token", xlabel="seconds", ylabel="requests, %", ylim=(0, 100), xscale="log")
    drawing.savefig(path, dpi=130, format="png")


def _shares_over_time(result: ReplayResult) -> tuple[list[float], list[list[float]]]:
    """Return the middles of slices of time, and for each source its percentage in each slice."""
    end_s = max((when_s for when_s, *_ in result.timeline), default=0.0) or 1.0
    sums = [[0] * len(_SOURCES) for _ in range(_SLICES)]
    for when_s, *tokens in result.timeline:
        row = sums[min(_SLICES - 1, int(when_s / end_s * _SLICES))]
        for source, count in enumerate(tokens):
            row[source] += count
    filled = [(index, row) for index, row in enumerate(sums) if sum(row)]
    times = [(index + 0.5) * end_s / _SLICES for index, _ in filled]
    return times, [[100 * row[source] / sum(row) for _, row in filled] for source in range(len(_SOURCES))]
