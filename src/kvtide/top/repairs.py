"""Advice for what is broken."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.top.advice import Advice
from kvtide.top.figures import Figures
from kvtide.top.state import Link, Node, State


def to_repair(shown: Figures, now: State) -> Iterator[Advice]:
    """Yield what has to be fixed before anything else can be said."""
    if now.link is not None and now.link.away:
        yield _start_node(now.link, shown.not_loaded.get("node_away", 0.0))
    if now.node is not None:
        yield from _tiers_of_node(now.node)
    unanswered = now.waits["transfers_unanswered"]
    if unanswered:
        yield Advice(
            "repair",
            "Find the rank that hangs: the server's log names it.",
            f"{unanswered:.0f} transfers are overdue, and until their rank answers nothing is stored or loaded.",
            {"transfers_unanswered": unanswered},
        )
    if now.stopped_engines:
        yield Advice(
            "repair",
            "Restart the server: offloading has stopped. Its log says why.",
            "A rank cannot copy any more, so nothing is stored or loaded until then.",
            {"stopped_engines": now.stopped_engines},
        )
    for name, tier in now.tiers.items():
        if tier.off_ranks:
            yield Advice(
                "repair",
                f"Look after tier {name}: it is switched off.",
                f"After failures it is not used on rank {', '.join(tier.off_ranks)}, and only tried now and then.",
                {"ranks_off": float(len(tier.off_ranks))},
            )


def _start_node(link: Link, tokens: float) -> Advice:
    whose = f" for {link.away} of {link.engines} engines" if link.away < link.engines else ""
    return Advice(
        "repair",
        "Start the node (`kvtide node`). If it runs, the server's log says why it cannot be used.",
        f"It is away{whose}: nothing is stored or loaded there until it is back, and {tokens:,.0f} tokens were "
        "computed because of that.",
        {"engines_away": float(link.away), "node_away_tokens": tokens},
    )


def _tiers_of_node(node: Node) -> Iterator[Advice]:
    for name, is_in_use in node.tiers.items():
        if not is_in_use:
            yield Advice(
                "repair",
                f"Look after tier {name} of the node: it is not in use. The node's log says why.",
                "A tier that has failed is tried again now and then. For one that could not be opened, start the node "
                "again. If the log says nothing, it is still being opened.",
                {"tiers_not_in_use": 1.0},
            )


def to_verify(shown: Figures) -> Iterator[Advice]:
    """Yield which tiers gave back something else than was put in."""
    for name, traffic in shown.tiers.items():
        if traffic.corrupt_records:
            yield Advice(
                "repair",
                f"Verify tier {name} (`kvtide tier verify`), and suspect its hardware.",
                f"{traffic.corrupt_records:,.0f} of its records did not verify. They count as misses.",
                {"corrupt_records": traffic.corrupt_records},
            )
