"""Tiers of a namespace in a node's status: one row for each, all parts together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvtide.tiers.base import TierStats
from kvtide.tiers.config import TierConfig, tier_names
from kvtide.units import size_text

_STATES = ("closed", "half-open", "open")
"""Of a breaker, the best first."""


def tier_rows(
    configs: Sequence[TierConfig], stats: Sequence[Mapping[str, TierStats]], failure: str
) -> list[dict[str, object]]:
    """Return them as JSON. `stats`: of each part, by the name of the tier."""
    names = tier_names([config.type for config in configs])
    return [
        {"name": name, "place": config.place, "failure": failure, **_row([part[name] for part in stats])}
        for name, config in zip(names, configs, strict=True)
    ]


def _row(parts: Sequence[TierStats]) -> dict[str, object]:
    keys: Counter[str] = Counter()
    for part in parts:
        for (call, verdict), count in part.keys.items():
            keys[f"{call} {verdict}"] += count
    used = [part.bytes_used for part in parts]
    budget = [part.bytes_budget for part in parts]
    return {
        "state": max((part.breaker for part in parts), key=_STATES.index) if parts else "not open",
        "keys": dict(sorted(keys.items())),
        "bytes_put": sum(part.bytes_put for part in parts),
        "bytes_got": sum(part.bytes_got for part in parts),
        "bytes_used": None if None in used or not used else sum(nbytes or 0 for nbytes in used),
        "bytes_budget": None if None in budget or not budget else sum(nbytes or 0 for nbytes in budget),
        "corrupt_records": sum(part.corrupt_records for part in parts),
    }


def described_tiers(namespace: Mapping[str, Any]) -> Iterator[str]:
    """Say the tiers of a namespace in lines."""
    for tier in namespace.get("tiers", ()):
        state = {"closed": "in use", "open": "switched off after failures", "half-open": "being tried again"}
        shown = tier["failure"] or state.get(tier["state"], tier["state"])
        used = "" if tier["bytes_used"] is None else f", {size_text(tier['bytes_used'])} used"
        moved = f"{size_text(tier['bytes_put'])} put, {size_text(tier['bytes_got'])} got"
        yield f"  {'tier':<10} {tier['name']} ({tier['place']}): {shown}{used}, {moved}"
