"""How full host memory and tiers are: a line of the picture each."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from kvtide.top.figures import Figures
from kvtide.top.paper import COLOURS, Paper
from kvtide.top.state import Pool, State
from kvtide.top.texts import bar, bytes_text, count_text, engines_text, rate_text, share_text


def fills(now: State, shown: Figures, paper: Paper) -> Table:
    """Return the lines of a server, or of a node and each of its namespaces."""
    place_width, bar_width = (13, 5) if paper.narrow else (14, 12)
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(width=place_width, no_wrap=True, overflow="ellipsis")
    table.add_column(width=bar_width, no_wrap=True)
    table.add_column(width=6, justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    if now.link is None:
        filled = bar(now.pool.fill, bar_width, ascii_only=paper.ascii_only)
        table.add_row("host pool", Text(filled, COLOURS["host"]), share_text(now.pool.fill), _size(now.pool, paper))
    else:
        table.add_row("host pool", "", Text("AWAY" if now.link.away else "", "bold red"), "at a node")
    for space in now.node.namespaces.values() if now.node is not None else ():
        filled = bar(space.fill, bar_width, ascii_only=paper.ascii_only)
        what = ", ".join([engines_text(space.engines), f"{count_text(space.slots)} slots"])
        table.add_row(space.model, Text(filled, COLOURS["host"]), share_text(space.fill), what)
    for name, tier in now.tiers.items():
        traffic = shown.tiers.get(name)
        put, got = (traffic.put_bytes, traffic.got_bytes) if traffic else (0.0, 0.0)
        facts = [f"of {bytes_text(tier.budget_bytes)}"] if tier.budget_bytes else []
        facts += [f"put {rate_text(shown.rate(put))}, got {rate_text(shown.rate(got))}"] if shown.seconds else []
        filled = bar(tier.fill, bar_width, ascii_only=paper.ascii_only)
        said = ", ".join(facts[: 1 if paper.narrow else None])
        line = Text("OFF " if tier.off_ranks else "", "bold red").append(said, "not bold default")
        table.add_row(f"tier {name}", Text(filled, COLOURS["tiers"]), share_text(tier.fill), line)
    return table


def _size(pool: Pool, paper: Paper) -> str:
    size = [f"of {bytes_text(pool.bytes)}"] if pool.bytes else []
    slots = [f"{count_text(pool.slots)} slots", f"{count_text(pool.pinned)} pinned"]
    return ", ".join([*size, *slots][: 1 if paper.narrow else None])
