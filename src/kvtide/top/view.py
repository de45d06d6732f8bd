"""The terminal's picture of some servers: for 80 columns and more, and with less in it from 40 on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvtide.top.alarms import alarms
from kvtide.top.figures import LEVELS, LOAD, STORE, Figures
from kvtide.top.fills import fills
from kvtide.top.history import WINDOW_S, Server
from kvtide.top.overview import overview
from kvtide.top.paper import COLOURS, GAP, NAME_WIDTH, NUMBER_WIDTH, Paper
from kvtide.top.state import State
from kvtide.top.texts import (
    bytes_text,
    count_text,
    engines_text,
    rate_text,
    reasons_text,
    share_text,
    short_url,
    sparkline,
    time_text,
)
from kvtide.units import given_text


def screen(servers: Sequence[Server], chosen: int, *, paper: Paper, clock: str) -> RenderableType:
    """Return one frame: all servers in a table if there are several, and the chosen one in detail."""
    keys = "q leaves, up and down choose" if len(servers) > 1 and not paper.narrow else "q leaves"
    title = Table.grid(expand=True)
    title.add_column(no_wrap=True)
    title.add_column(justify="right", no_wrap=True)
    title.add_row(Text("kvtide top", "bold"), Text(f"{keys}  {clock}", "dim"))
    parts: list[RenderableType] = [title]
    if len(servers) > 1:
        parts.append(overview(servers, chosen, width=paper.width, rows=max(4, paper.height // 4)))
    parts += [Text(""), *details(servers[chosen], paper)]
    return Group(*parts)


def details(server: Server, paper: Paper) -> list[RenderableType]:
    """Return all that is known of one server."""
    parts: list[RenderableType] = [_headline(server)]
    parts += [Text(f"! {alarm}", "red") for alarm in alarms(server)]
    if server.now is None or server.since_start is None:
        return parts
    parts += [_levels(server, paper), Text("")]
    if server.now.node is None:  # a node does not know what engines load
        parts += [_speeds(server, paper), Text("")]
    parts += [fills(server.now, server.window or server.since_start, paper), Text("")]
    parts += _reasons(server.window or server.since_start, paper)
    return parts


def _headline(server: Server) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(short_url(server.url), "bold")
    line.append("  ")
    line.append(server.state, "green" if server.state == "up" else "red")
    if server.now is not None and server.state == "up":
        line.append(_working(server.now))
    if server.restarts:
        line.append(f", restarted {server.restarts}x", "yellow")
    line.append(f"  {', '.join(server.models)}", "dim")
    return line


def _working(now: State) -> str:
    if now.node is None:
        return f", {now.running:.0f} running, {now.waiting:.0f} waiting"
    ending = now.node.engines.get("ending", 0.0)
    engines = engines_text(now.node.engines.get("open", 0.0)) + (f", {ending:.0f} ending" if ending else "")
    return f", a node: {engines}, {given_text(now.node.memory_bytes, now.node.free_bytes, 'models')}"


def _when(shown: Figures | None) -> str:
    """Say what numbers are of: as long as was really looked at."""
    if shown is not None and shown.seconds is None:
        return "since start"
    return f"last {max(1.0, WINDOW_S if shown is None else shown.seconds or 0.0):.0f} s"


def _grid(server: Server, paper: Paper, name: str, curve: str) -> Table:
    table = Table(box=None, padding=0, pad_edge=False, expand=paper.live, header_style="dim")
    table.add_column(name, width=NAME_WIDTH, no_wrap=True)
    for heading in _numbers(paper, _when(server.window), "since start"):
        table.add_column(heading, width=NUMBER_WIDTH, justify="right", no_wrap=True)
    table.add_column("", width=GAP)
    table.add_column(curve if paper.live else "", no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _numbers(paper: Paper, window: str, start: str) -> list[str]:
    """Return the numbers that there is room for, or that are known."""
    return [window, start][:1] if paper.live and paper.narrow else [window, start][-paper.numbers :]


def _curve(values: Sequence[float | None], paper: Paper, colour: str, top: float | None = None) -> Text:
    return Text(
        sparkline(values, paper.curve_width, top=top, ascii_only=paper.ascii_only) if paper.live else "", colour
    )


def _levels(server: Server, paper: Paper) -> Table:
    what = "share, over time" if paper.narrow else "share of prompt tokens, over time"
    table = _grid(server, paper, "prompt", what)
    known = ("host",) if server.now is not None and server.now.node is not None else LEVELS
    for level in (*known, "computed"):
        window, start = (
            share_text(shown.tokens.share(level) if shown else None) for shown in (server.window, server.since_start)
        )
        curve = _curve([point.tokens.share(level) if point else None for point in server.points], paper, "", top=1.0)
        curve.stylize(COLOURS[level])
        table.add_row(Text(level, COLOURS[level]), *_numbers(paper, window, start), "", curve)
    return table


def _speeds(server: Server, paper: Paper) -> Table:
    table = _grid(server, paper, "moved", "rate, over time" if paper.narrow else "bytes per second, over time")
    window, start = server.window, server.since_start
    assert start is not None
    for way in (STORE, LOAD):
        curve = [point.rate(point.moved_bytes[way]) if point else None for point in server.points]
        speed = rate_text(window.rate(window.moved_bytes[way]) if window else None)
        numbers = _numbers(paper, speed, bytes_text(start.moved_bytes[way]))
        table.add_row(Text(way, COLOURS[way]), *numbers, "", _curve(curve, paper, COLOURS[way]))
    if start.packing_saved_bytes or start.blocks["unpacked"]:
        speed = rate_text(window.rate(window.packing_saved_bytes) if window else None)
        numbers = _numbers(paper, speed, bytes_text(start.packing_saved_bytes))
        table.add_row("packing", *numbers, "", Text(_packing_text(start.blocks["unpacked"], paper), "dim"))
    times = [time_text(shown.ttft_ms if shown else None) for shown in (window, start)]
    saved = [time_text(shown.ttft_saved_ms if shown else None) for shown in (window, start)]
    table.add_row("TTFT", *_numbers(paper, *times), "", Text("mean of requests", "dim"))
    estimated = "estimated" if paper.narrow else "of each request, estimated"
    table.add_row("  saved", *_numbers(paper, *saved), "", Text(estimated, "dim"))
    return table


def _packing_text(unpacked_blocks: float, paper: Paper) -> str:
    unpacked = count_text(unpacked_blocks)
    return f"unpacked {unpacked}" if paper.narrow else f"less; {unpacked} blocks do not pack"


def _reasons(shown: Figures, paper: Paper) -> list[RenderableType]:
    lines = [("loaded", "tokens", shown.not_loaded), ("stored", "blocks", shown.not_stored)]
    if shown.tiers or shown.not_sunk:
        lines.append(("sunk", "blocks", shown.not_sunk))
    whole = paper.narrow or not paper.live  # in a live view lines that come and go would make the rest jump
    return [
        Text(
            f"not {what} ({unit}, {_when(shown)}): {reasons_text(reasons)}",
            no_wrap=not whole,
            overflow="fold" if whole else "ellipsis",
        )
        for what, unit, reasons in lines
    ]
