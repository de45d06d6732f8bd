"""Advice for what is broken."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.top.advice import Advice
from kvtide.top.figures import Figures
from kvtide.top.state import State


def to_repair(now: State) -> Iterator[Advice]:
    """Yield what has to be mended before anything else can be said."""
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
