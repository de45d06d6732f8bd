"""A plan as a table, a sentence and JSON."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from kvtide.traces.plan import PlanResult, Point
from kvtide.units import percent_text, seconds_text, size_text


def plan_table(plan: PlanResult) -> Table:
    """Return hit ratios by size and policy."""
    table = Table(title="prompt tokens loaded instead of computed, by host memory", title_justify="left")
    table.add_column("host memory", justify="right")
    for policy in plan.curves:
        table.add_column(policy, justify="right")
    table.add_column("best mean TTFT", justify="right")
    for row in zip(*plan.curves.values(), strict=True):
        best_s = min(point.ttft_s for point in row)
        table.add_row(size_text(row[0].host_bytes), *map(_cell, row), seconds_text(best_s))
    return table


def _cell(point: Point) -> str:
    error = f" ± {100 * point.error:.1f}" if point.error else ""
    return percent_text(point.hit_ratio) + error


def conclusion(plan: PlanResult) -> str:
    """Return what to do, in a sentence."""
    policy, knee = plan.best_policy, plan.knee
    points = plan.curves[policy]
    sentence = (
        f"With {size_text(knee.host_bytes)} of host memory {knee.hit_ratio:.0%} of prefill tokens are loaded instead "
        f"of computed (policy {policy}), and a first token takes {seconds_text(knee.ttft_s)} on average instead of "
        f"{seconds_text(plan.ttft_without_s)}"
    )
    doubled = next((point for point in points if point.host_bytes >= 2 * knee.host_bytes), None)
    if doubled is None:
        return sentence + "; more memory was not tried."
    points_more = 100 * (doubled.hit_ratio - knee.hit_ratio)
    return sentence + f"; doubling it adds {max(0.0, points_more):.0f} points."


def as_json(plan: PlanResult) -> dict[str, object]:
    """Return everything as plain data."""
    return {
        "requests": plan.requests,
        "prompt_tokens": plan.prompt_tokens,
        "unique_bytes": plan.unique_bytes,
        "ttft_without_s": plan.ttft_without_s,
        "best_policy": plan.best_policy,
        "knee_bytes": plan.knee.host_bytes,
        "conclusion": conclusion(plan),
        "curves": {policy: [asdict(point) for point in points] for policy, points in plan.curves.items()},
    }
