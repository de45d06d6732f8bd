"""The plan as one HTML page that needs nothing else: what to buy, curves, and all numbers in a table."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from urllib.parse import quote

from kvtide.traces.assumptions import assumption_texts
from kvtide.traces.plan import PlanResult, Point
from kvtide.traces.plan_curves import compared, main_policy, page_data, sizes_of
from kvtide.traces.plan_report import BETTER_FROM, reasons
from kvtide.traces.prices import GIB, dollars_text
from kvtide.traces.rates import Sourced
from kvtide.units import percent_text, seconds_text, size_text


def plan_page(plan: PlanResult, title: str, taken: Mapping[str, Sourced], admission: str = "all") -> str:
    """Return the page. Everything that comes from outside is escaped."""
    chosen, sizes = plan.recommendation, sizes_of(plan)
    style = _part("uplot/uPlot.min.css") + _part("plan.css")
    library = f"/*\n{_part('uplot/LICENSE')}\n*/\n{_part('uplot/uPlot.iife.min.js')}"
    script = _part("plan.js")
    parts = {
        "allowed": _allowed(style, library, script),
        "title": escape(title),
        "style": style,
        "recording": f"{plan.requests:,} requests, {plan.prompt_tokens:,} prompt tokens"
        + (f", admission {escape(admission)}" if admission != "all" else ""),
        "advice": f"Buy {size_text(chosen.host_bytes)} of host memory" if chosen.host_bytes else "Buy no host memory",
        "certainty": chosen.certainty.level,
        "tiles": _tiles(plan),
        "reasons": "".join(f"<p>{escape(reason)}</p>" for reason in reasons(plan)),
        "device_share": percent_text(plan.device_share),
        "last_size": str(len(sizes) - 1),
        "read_size": str(sizes.index(chosen.host_bytes) if chosen.host_bytes in sizes else len(sizes) // 2),
        "policies": _choices(plan),
        "csv": f"data:text/csv;charset=utf-8,{quote(_csv(plan))}",
        "about": _about(plan),
        "table": _table(plan),
        "sources": _sources(taken),
        "data": json.dumps(page_data(plan)).replace("<", "\\u003c"),
        "library": library,
        "script": script,
    }
    # In one go: what is put in is never looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _part("plan.html"))


def _part(name: str) -> str:
    return files("kvtide.traces").joinpath("page", name).read_text(encoding="utf-8")


def _allowed(style: str, *scripts: str) -> str:
    """Return what a browser may do for this page: run our scripts, use our style, and ask nobody."""

    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return f"default-src 'none'; img-src data:; style-src {hashed(style)}; script-src {' '.join(map(hashed, scripts))}"


def _sources(taken: Mapping[str, Sourced]) -> str:
    items = []
    for text, below in assumption_texts(taken).items():
        inner = "".join(f"<li>{escape(each)}</li>" for each in below)
        items.append(f"<li>{escape(text)}{f'<ul>{inner}</ul>' if inner else ''}</li>")
    return "".join(items)


def _tiles(plan: PlanResult) -> str:
    chosen = plan.recommendation
    before, after = (seconds_text(ms / 1000) for ms in (chosen.ttft_ms_before, chosen.ttft_ms_after))
    tiles = {"served by the device": percent_text(chosen.device_share)}
    if chosen.host_bytes:
        tiles["added by host memory"] = percent_text(chosen.added_share)
        tiles["mean time to first token"] = f"{before} → {after}"
        tiles["GPU time saved, per hour"] = dollars_text(chosen.saved_dollars_per_hour)
        tiles["price of memory, per hour"] = dollars_text(chosen.price_dollars_per_hour)
    else:
        tiles["mean time to first token"] = before
    return "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in tiles.items())


def _choices(plan: PlanResult) -> str:
    """Return a box for each policy: the main one is always drawn, and the best one from the start."""
    main = main_policy(plan)
    choices = []
    for policy, points in plan.curves.items():
        pairs = zip(points, plan.curves[main], strict=True)
        better = policy == plan.best_policy and any(a.added_share - b.added_share >= BETTER_FROM for a, b in pairs)
        state = " checked disabled" if policy == main else " checked" if better else ""
        choices.append(
            f'<label><input type="checkbox" autocomplete="off"{state}><canvas width="60" height="24"></canvas>'
            f'<span>{escape(policy)} <span class="soft">{escape(compared(plan, policy))}</span></span></label>'
        )
    return "".join(choices)


def _about(plan: PlanResult) -> str:
    about = "By policy: prompt tokens that it adds to what the device serves. Time to first token: mean, with lru."
    if any(point.error for points in plan.curves.values() for point in points):
        about += " ± is the standard error of samples."
    return about


def _table(plan: PlanResult) -> str:
    """Return all numbers. The roles are there because narrow pages show rows as blocks (plan.css)."""
    names = ["host memory", *map(escape, plan.curves), "mean TTFT"]
    heads = "".join(f'<th role="columnheader" scope="col">{name}</th>' for name in names)
    rows = [
        _row(
            "none",
            [percent_text(0)] * len(plan.curves),
            plan.ttft_without_s,
            names,
            chosen=not plan.recommendation.host_bytes,
        )
    ]
    for points, ttft_s in zip(zip(*plan.curves.values(), strict=True), plan.ttft_s, strict=True):
        size = points[0].host_bytes
        chosen = size == plan.recommendation.host_bytes
        rows.append(_row(size_text(size), list(map(_cell, points)), ttft_s, names, chosen=chosen))
    return (
        f'<table role="table" aria-labelledby="numbers" aria-describedby="about"><thead role="rowgroup">'
        f'<tr role="row">{heads}</tr></thead><tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    )


def _row(size: str, shares: list[str], ttft_s: float, names: list[str], *, chosen: bool) -> str:
    cells = "".join(
        f'<td role="cell" data-label="{name}">{text}</td>'
        for name, text in zip(names[1:], [*shares, seconds_text(ttft_s)], strict=True)
    )
    mark, note = (' class="chosen"', " (recommended)") if chosen else ("", "")
    return f'<tr role="row"{mark}><th role="rowheader" scope="row">{size}{note}</th>{cells}</tr>'


def _cell(point: Point) -> str:
    return percent_text(point.added_share) + (f" ± {100 * point.error:.1f}" if point.error else "")


def _csv(plan: PlanResult) -> str:
    """Return the table for other programs, with all digits."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    kinds = ("added_share", "error")
    rows.writerow(["host_gib", *(f"{policy}_{kind}" for policy in plan.curves for kind in kinds), "ttft_s"])
    rows.writerow([0, *[0] * len(kinds) * len(plan.curves), plan.ttft_without_s])
    for points, ttft_s in zip(zip(*plan.curves.values(), strict=True), plan.ttft_s, strict=True):
        numbers = (getattr(point, kind) for point in points for kind in kinds)
        rows.writerow([points[0].host_bytes / GIB, *numbers, ttft_s])
    return out.getvalue()
