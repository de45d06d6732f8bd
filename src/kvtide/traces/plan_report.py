"""A plan as a table, a few sentences and JSON."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from kvtide.traces.plan import PlanResult, Point
from kvtide.units import percent_text, seconds_text, size_text

BETTER_FROM = 0.01
"""A policy is worth a word if it adds so much more."""


def plan_table(plan: PlanResult) -> Table:
    """Return what each policy adds, by size."""
    title = f"prompt tokens that host memory adds to the {percent_text(plan.device_share)} that the device serves"
    table = Table(title=title, title_justify="left")
    table.add_column("host memory", justify="right")
    for policy in plan.curves:
        table.add_column(policy, justify="right")
    table.add_column("mean TTFT", justify="right")
    table.add_row("none", *[""] * len(plan.curves), seconds_text(plan.ttft_without_s))
    for row, ttft_s in zip(zip(*plan.curves.values(), strict=True), plan.ttft_s, strict=True):
        chosen = " *" if row[0].host_bytes == plan.recommendation.host_bytes else ""
        table.add_row(size_text(row[0].host_bytes) + chosen, *map(_cell, row), seconds_text(ttft_s))
    return table


def legend(plan: PlanResult) -> str:
    """Say what the columns of the table are."""
    points = [point for curve in plan.curves.values() for point in curve]
    parts = [f"{', '.join(plan.curves)}: share of prompt tokens that host memory adds with this policy"]
    if any(point.error for point in points):
        parts.append("±: error in percentage points, where it was run on samples")
    parts.append("mean TTFT: time to first token, with lru")
    if any(point.host_bytes == plan.recommendation.host_bytes for point in points):
        parts.append("*: what is recommended")
    return "; ".join(parts)


def _cell(point: Point) -> str:
    error = f"±{100 * point.error:.1f}" if point.error else ""
    return percent_text(point.added_share) + error


def conclusion(plan: PlanResult) -> str:
    """Return what to do, why, and how sure that is."""
    return " ".join(reasons(plan))


def reasons(plan: PlanResult) -> list[str]:
    """Return the same, a text for each."""
    chosen = plan.recommendation
    sentences = [chosen.why]
    best = _added(plan, plan.best_policy)
    here = _added(plan, chosen.policy)
    if best - here >= BETTER_FROM:
        more = percent_text(best - here)
        sentences.append(f"The policy {plan.best_policy} would add {more} more than {chosen.policy} at this size.")
    return [*sentences, chosen.certainty.text]


def _added(plan: PlanResult, policy: str) -> float:
    size = plan.recommendation.host_bytes
    return next((point.added_share for point in plan.curves.get(policy, ()) if point.host_bytes == size), 0.0)


def as_json(plan: PlanResult) -> dict[str, object]:
    """Return everything as plain data."""
    return {
        "requests": plan.requests,
        "too_large": plan.too_large,
        "prompt_tokens": plan.prompt_tokens,
        "block_tokens": plan.block_tokens,
        "unique_bytes": plan.unique_bytes,
        "device_share": plan.device_share,
        "ttft_without_s": plan.ttft_without_s,
        "best_policy": plan.best_policy,
        "recommendation": plan.recommendation.as_json(),
        "conclusion": conclusion(plan),
        "curves": {policy: [asdict(point) for point in points] for policy, points in plan.curves.items()},
        "ttft_s": plan.ttft_s,
    }
