"""PNG plots. matplotlib is imported only when a plot is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtide.packages import install
from kvtide.traces.errors import TraceError
from kvtide.traces.plan import PlanResult
from kvtide.traces.plan_curves import compared, fine_curve, is_far_apart, is_same, main_policy, sizes_of, time_unit
from kvtide.traces.prices import GIB
from kvtide.traces.replay_result import ReplayResult
from kvtide.units import percent_text, seconds_text, size_text

COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774", "#b59b00")
_SLICES = 60
_SOURCES = ("device", "host", "below", "computed")
_SOURCE_COLOURS = ("#9db4c0", "#0b6e99", "#d9a66b", "#efeeec")
"""What the host adds is to be seen first."""
_TICKS = 14
"""At most so many sizes are written below an axis."""
_DASHES = ("--", ":", "-.")
_SOFT, _MARK = "#787774", "#8a4b00"


def figure(width: float, height: float, widths: Sequence[float] = (1,)) -> tuple[Any, Any]:
    """Return a matplotlib figure, without a screen, and its axes: one, or a row of these relative widths."""
    try:
        agg = importlib.import_module("matplotlib.backends.backend_agg")
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise TraceError(f"plots need matplotlib: {install('plot')}") from None
    drawing = figures.Figure(figsize=(width, height), layout="constrained")
    agg.FigureCanvasAgg(drawing)
    axes = drawing.subplots(1, len(widths), width_ratios=widths)
    for axis in axes if len(widths) > 1 else (axes,):
        axis.grid(visible=True, alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return drawing, axes


def draw_plan(plan: PlanResult, title: str, path: Path) -> None:
    """Draw what host memory adds and the time to first token against its size, with what is recommended."""
    drawing, (left, right) = figure(13, 5, (3, 2))
    drawing.suptitle(title, wrap=True)
    _draw_gain(left, plan)
    unit, times = time_unit(plan)
    sizes = [size / GIB for size in sizes_of(plan)]
    right.plot(
        sizes, [times * ttft_s for ttft_s in plan.ttft_s], "o-", color=COLOURS[0], linewidth=2.5, label="with lru"
    )
    right.axhline(times * plan.ttft_without_s, color=_SOFT, linewidth=1.5, label="without host memory")
    right.set(ylabel=f"mean time to first token, {unit}")
    for axis in (left, right):
        axis.set_ylim(bottom=0, top=max(1, 1.1 * axis.get_ylim()[1]))
        axis.set_xscale("log", base=2)
        ticks = _apart(sizes)
        axis.set_xticks(ticks, [f"{size:g}" if size >= 1 else f"{size:.2g}" for size in ticks])
        axis.set_xlabel("host memory, GiB (log scale)")
        _mark(axis, plan.recommendation.host_bytes)
        axis.legend(frameon=False, loc="best")
    if is_far_apart(plan):
        right.set_yscale("log")
        right.autoscale(axis="y")
        right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        right.set_ylabel(f"mean time to first token, {unit} (log scale)")
    drawing.savefig(path, dpi=130, format="png")


def _draw_gain(axis: Any, plan: PlanResult) -> None:
    """Draw the main curve, and thinner ones of the policies that differ from it."""
    main, styles = main_policy(plan), iter(zip(COLOURS[1:] * 2, _DASHES * 2, strict=False))
    sizes = [size / GIB for size in sizes_of(plan)]
    same = [policy for policy in plan.curves if policy != main and is_same(plan, policy)]
    for policy, points in plan.curves.items():
        shares, errors = [100 * point.added_share for point in points], [100 * point.error for point in points]
        if policy == main:
            curve = fine_curve(plan) or list(zip(sizes, shares, strict=True))
            axis.plot(
                *zip(*curve, strict=True), color=COLOURS[0], linewidth=2.5, zorder=3, label=", ".join([main, *same])
            )
            axis.errorbar(sizes, shares, yerr=errors, fmt="o", color=COLOURS[0], markersize=5, capsize=2, zorder=3)
        elif policy not in same:
            colour, dash = next(styles)
            label = f"{policy}, {compared(plan, policy)}"
            how = {"linestyle": dash, "marker": "o", "markersize": 3, "linewidth": 1.3, "capsize": 2}
            axis.errorbar(sizes, shares, yerr=errors, color=colour, label=label, **how)
    axis.set(ylabel=f"prompt tokens added to the {percent_text(plan.device_share)} on the device, %")


def _apart(sizes: Sequence[float]) -> list[float]:
    """Return sizes that are far enough apart to be written below an axis."""
    least = (sizes[-1] / sizes[0]) ** (1 / _TICKS)
    kept = [sizes[0]]
    for size in sizes[1:]:
        if size >= least * kept[-1]:
            kept.append(size)
    return kept


def _mark(axis: Any, chosen: int) -> None:
    """Mark what is recommended, above the plot, where no curve is."""
    above = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "center", "color": _MARK}
    if chosen:
        axis.axvline(chosen / GIB, color=_MARK, linestyle="--", linewidth=1.5)
        axis.annotate(f"recommended: {size_text(chosen)}", (chosen / GIB, 1), xytext=(0, 4), **above)
    else:
        axis.set_title("recommended: none", loc="left", color=_MARK, fontsize="medium")


def draw_replay(result: ReplayResult, title: str, path: Path) -> None:
    """Draw where tokens came from over time, and the distribution of the time to first token."""
    drawing, (left, right) = figure(13, 5, (3, 2))
    drawing.suptitle(title, wrap=True)
    times, shares = _shares_over_time(result)
    totals = (result.device_tokens, result.host_tokens, result.below_tokens, result.computed_tokens)
    labels = [f"{name}, {percent_text(result.share(tokens))}" for name, tokens in zip(_SOURCES, totals, strict=True)]
    left.stackplot(times, *shares, labels=labels, colors=_SOURCE_COLOURS)
    left.set(xlabel="time, s", ylabel="prompt tokens by where they came from, %", ylim=(0, 100))
    left.margins(x=0)
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(_SOURCES), frameon=False)
    count = len(result.ttft_s)
    right.plot(result.ttft_s, [100 * (index + 1) / count for index in range(count)], color=COLOURS[0], linewidth=2.5)
    for share, dash in ((0.5, "--"), (0.9, ":")):
        at_s = result.ttft_at(share)
        right.axvline(at_s, color=_MARK, linestyle=dash, label=f"{share:.0%} within {seconds_text(at_s)}")
    right.set(xlabel="time to first token, s (log scale)", ylabel="requests, %", ylim=(0, 100), xscale="log")
    right.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.legend(frameon=False, loc="upper left")
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
