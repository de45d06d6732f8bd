"""What is shown, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvtide.top.figures import LEVELS, Figures
from kvtide.top.history import Server
from kvtide.top.state import State


def server_json(server: Server) -> dict[str, Any]:
    """Return a server as plain data."""
    return {
        "url": server.url,
        "state": server.state,
        "why": server.why,
        "models": list(server.models),
        "restarts": server.restarts,
        "now": _state(server.now) if server.now else None,
        "since_start": _figures(server.since_start) if server.since_start else None,
        "window": _figures(server.window) if server.window else None,
    }


def points_json(server: Server) -> list[dict[str, Any] | None]:
    """Return what is drawn over time."""
    return [
        None if point is None else {**_ratios(point), **_rates(point), "seconds": point.seconds}
        for point in server.points
    ]


def _state(now: State) -> dict[str, Any]:
    shown = asdict(now)
    shown["pool"]["fill"] = now.pool.fill
    for name, tier in now.tiers.items():
        shown["tiers"][name]["fill"] = tier.fill
    for name, space in now.node.namespaces.items() if now.node is not None else ():
        shown["node"]["namespaces"][name]["fill"] = space.fill
    return shown


def _figures(found: Figures) -> dict[str, Any]:
    return {**asdict(found), **_ratios(found), **_rates(found)}


def _ratios(found: Figures) -> dict[str, Any]:
    shares = {level: found.tokens.share(level) for level in LEVELS}
    known = [share for share in shares.values() if share is not None]
    return {"hit_ratio": {**shares, "all": sum(known) if known else None}}


def _rates(found: Figures) -> dict[str, Any]:
    return {"bytes_per_s": {way: found.rate(moved) for way, moved in found.moved_bytes.items()}}
