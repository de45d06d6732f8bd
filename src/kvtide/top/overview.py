"""All servers in a table, a line each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from kvtide.top.alarms import alarms
from kvtide.top.figures import LEVELS, LOAD, STORE
from kvtide.top.history import Server
from kvtide.top.texts import rate_text, share_text, short_url, time_text

WIDTH_MAX = 100
"""On a wider screen numbers would be far away from the names that they belong to."""
ALL_COLUMNS_FROM = 76
"""Where the screen is narrower, shares by level are shown, and nothing else."""
MORE_COLUMNS = ("saved", "store", "load", "pool")


def overview(servers: Sequence[Server], chosen: int, *, width: int, rows: int | None = None) -> Table:
    """Return a line for each server; or for so many around the chosen one, and how many others there are."""
    more = MORE_COLUMNS if width >= ALL_COLUMNS_FROM else ()
    table = Table(box=None, padding=(0, 1, 0, 0), width=min(width, WIDTH_MAX), header_style="dim")
    table.add_column("server", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in (*LEVELS, *more):
        table.add_column(name, justify="right", no_wrap=True)
    shown = range(len(servers)) if rows is None or len(servers) <= rows else _around(chosen, len(servers), rows)
    for number in shown:
        cells = _cells(servers[number], is_chosen=number == chosen)
        table.add_row(*cells[: len(table.columns)])
    if len(shown) < len(servers):
        table.add_row(Text(f"  {len(servers) - len(shown)} more", "dim"))
    return table


def _around(chosen: int, count: int, rows: int) -> range:
    first = min(max(0, chosen - rows // 2), count - rows)
    return range(first, first + rows)


def _cells(server: Server, *, is_chosen: bool) -> list[Text | str]:
    name = ("> " if is_chosen else "  ") + short_url(server.url)
    style = "bold" if is_chosen else ""
    if server.state != "up":
        return [Text(name, style), Text(server.state, "red")]
    figures, now = server.window or server.since_start, server.now
    assert figures is not None
    assert now is not None
    shares = [share_text(figures.tokens.share(level)) for level in LEVELS]
    rates = [rate_text(figures.rate(figures.moved_bytes[way])) for way in (STORE, LOAD)]
    label = Text(name, "bold red" if alarms(server) else style)
    return [label, *shares, time_text(figures.ttft_saved_ms), *rates, share_text(now.pool.fill)]
