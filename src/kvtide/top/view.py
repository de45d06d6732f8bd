"""The terminal's picture of some servers, for any width from 80 columns on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvtide.top.alarms import alarms
from kvtide.top.figures import LEVELS, LOAD, STORE, Figures
from kvtide.top.history import WINDOW_S, Server
from kvtide.top.state import State
from kvtide.top.texts import bar, bytes_text, count_text, rate_text, reasons_text, share_text, sparkline, time_text

COLOURS = {"device": "blue", "host": "green", "tiers": "yellow", "computed": "dim", STORE: "cyan", LOAD: "magenta"}
NAME_WIDTH, NUMBER_WIDTH = 9, 12
PLACE_WIDTH, BAR_WIDTH = 14, 12


def screen(
    servers: Sequence[Server], chosen: int, *, width: int, clock: str, keys: str, ascii_only: bool = False
) -> RenderableType:
    """Return one frame: all servers in a table if there are several, and the chosen one in detail."""
    title = Table.grid(expand=True)
    title.add_column(no_wrap=True)
    title.add_column(justify="right", no_wrap=True)
    title.add_row(Text("kvtide top", "bold"), Text(f"{keys}  {clock}", "dim"))
    parts: list[RenderableType] = [title]
    if len(servers) > 1:
        parts.append(overview(servers, chosen))
    parts += [Text(""), *details(servers[chosen], width=width, ascii_only=ascii_only)]
    return Group(*parts)


def short_url(url: str) -> str:
    """Return what tells a server from others."""
    return re.sub(r"^https?://|/metrics$", "", url)


def overview(servers: Sequence[Server], chosen: int) -> Table:
    """Return a line for each server."""
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style="dim")
    table.add_column("server", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in ("device", "host", "tiers", "saved", "store", "load", "pool"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, server in enumerate(servers):
        mark = "> " if number == chosen else "  "
        style = "bold" if number == chosen else ""
        if server.state != "up":
            table.add_row(Text(mark + short_url(server.url), style), Text(server.state, "red"), *[""] * 6)
            continue
        shown, now = server.window or server.since_start, server.now
        assert shown is not None
        assert now is not None
        shares = [share_text(shown.tokens.share(level)) for level in LEVELS]
        rates = [rate_text(shown.rate(shown.moved_bytes[way])) for way in (STORE, LOAD)]
        label = Text(mark + short_url(server.url), "bold red" if alarms(server) else style)
        table.add_row(label, *shares, time_text(shown.ttft_saved_ms), *rates, share_text(now.pool.fill))
    return table


def details(server: Server, *, width: int, ascii_only: bool) -> list[RenderableType]:
    """Return all that is known of one server."""
    parts: list[RenderableType] = [_headline(server)]
    parts += [Text(f"! {alarm}", "red", no_wrap=True, overflow="ellipsis") for alarm in alarms(server)]
    if server.now is None or server.since_start is None:
        return parts
    curve_width = max(10, width - NAME_WIDTH - 2 * NUMBER_WIDTH - 2)
    parts += [_levels(server, curve_width, ascii_only), Text("")]
    parts += [_speeds(server, curve_width, ascii_only), Text("")]
    parts += [_fills(server.now, server.window or server.since_start, ascii_only), Text("")]
    parts += _reasons(server.window or server.since_start)
    return parts


def _headline(server: Server) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(short_url(server.url), "bold")
    line.append("  ")
    line.append(server.state, "green" if server.state == "up" else "red")
    if server.now is not None and server.state == "up":
        line.append(f", {server.now.running:.0f} running, {server.now.waiting:.0f} waiting")
    if server.restarts:
        line.append(f", restarted {server.restarts}x", "yellow")
    line.append(f"  {', '.join(server.models)}", "dim")
    return line


def _grid(headings: Sequence[str]) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, expand=True, header_style="dim")
    table.add_column(headings[0], width=NAME_WIDTH, no_wrap=True)
    for heading in headings[1:3]:
        table.add_column(heading, width=NUMBER_WIDTH, justify="right", no_wrap=True)
    table.add_column("", width=2)
    table.add_column(headings[3], no_wrap=True, ratio=1)
    return table


def _levels(server: Server, curve_width: int, ascii_only: bool) -> Table:
    table = _grid(("prompt", f"last {WINDOW_S:.0f} s", "since start", "share of prompt tokens, over time"))
    for level in (*LEVELS, "computed"):
        numbers = [
            share_text(shown.tokens.share(level) if shown else None) for shown in (server.window, server.since_start)
        ]
        curve = [point.tokens.share(level) if point else None for point in server.points]
        line = sparkline(curve, curve_width, top=1.0, ascii_only=ascii_only)
        table.add_row(Text(level, COLOURS[level]), *numbers, "", Text(line, COLOURS[level]))
    return table


def _speeds(server: Server, curve_width: int, ascii_only: bool) -> Table:
    table = _grid(("moved", f"last {WINDOW_S:.0f} s", "since start", "bytes per second, over time"))
    window, start = server.window, server.since_start
    assert start is not None
    for way in (STORE, LOAD):
        curve = [point.rate(point.moved_bytes[way]) if point else None for point in server.points]
        line = sparkline(curve, curve_width, ascii_only=ascii_only)
        speed = rate_text(window.rate(window.moved_bytes[way]) if window else None)
        table.add_row(Text(way, COLOURS[way]), speed, bytes_text(start.moved_bytes[way]), "", Text(line, COLOURS[way]))
    times = [[time_text(shown.ttft_ms if shown else None) for shown in (window, start)]]
    times += [[time_text(shown.ttft_saved_ms if shown else None) for shown in (window, start)]]
    table.add_row("TTFT", *times[0], "", Text("mean of requests", "dim"))
    table.add_row("  saved", *times[1], "", Text("of each request, estimated", "dim"))
    return table


def _fills(now: State, shown: Figures, ascii_only: bool) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(width=PLACE_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column(width=BAR_WIDTH, no_wrap=True)
    table.add_column(width=6, justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    pool = now.pool
    size = f"of {bytes_text(pool.bytes)}, " if pool.bytes else ""
    what = f"{size}{count_text(pool.slots)} slots, {count_text(pool.pinned)} pinned"
    filled = bar(pool.fill, BAR_WIDTH, ascii_only=ascii_only)
    table.add_row("host pool", Text(filled, COLOURS["host"]), share_text(pool.fill), what)
    for name, tier in now.tiers.items():
        traffic = shown.tiers.get(name)
        put, got = (traffic.put_bytes, traffic.got_bytes) if traffic else (0.0, 0.0)
        facts = [f"of {bytes_text(tier.budget_bytes)}"] if tier.budget_bytes else []
        facts += [f"put {rate_text(shown.rate(put))}, got {rate_text(shown.rate(got))}"] if shown.seconds else []
        filled = bar(tier.fill, BAR_WIDTH, ascii_only=ascii_only)
        line = Text("OFF " if tier.off_ranks else "", "bold red").append(", ".join(facts), "not bold default")
        table.add_row(f"tier {name}", Text(filled, COLOURS["tiers"]), share_text(tier.fill), line)
    return table


def _reasons(shown: Figures) -> list[RenderableType]:
    when = f"last {WINDOW_S:.0f} s" if shown.seconds else "since start"
    lines = [("loaded", "tokens", shown.not_loaded), ("stored", "blocks", shown.not_stored)]
    if shown.tiers or shown.not_sunk:
        lines.append(("sunk", "blocks", shown.not_sunk))
    return [
        Text(f"not {what} ({unit}, {when}): {reasons_text(reasons)}", no_wrap=True, overflow="ellipsis")
        for what, unit, reasons in lines
    ]
