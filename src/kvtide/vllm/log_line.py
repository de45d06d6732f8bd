"""The line that vLLM logs every 10 s: where prompts were found, and what is being stored."""

from __future__ import annotations

from collections.abc import Mapping

from kvtide.units import percent_text, size_text


def log_line(counters: Mapping[str, float], gauges: Mapping[str, float]) -> dict[str, str]:
    """Return names and texts of what happened since the last line, the least of them that says it.

    >>> counters = {"prompt_tokens": 1000, "device_tokens": 400, "loaded_tokens": 300, "loaded_blocks": 30,
    ...             "fetched_blocks": 10, "stored_blocks": 40, "transfer_bytes/store": 40 << 20, "sunk_blocks": 8}
    >>> gauges = {"slots": 100, "slots_free": 25, "tier_off/disk/0": 1}
    >>> print(", ".join(f"{name}={text}" for name, text in log_line(counters, gauges).items()))
    kvtide hits=40.0% device + 20.0% host + 10.0% tiers, stored=40 blocks (40 MiB), sunk=8 blocks, host=75% full, \
tiers off=disk
    >>> log_line({"stored_blocks": 1}, {"node_attached": 0})["node"]
    'away'
    """
    tiers = {name.split("/")[1]: False for name in gauges if name.startswith("tier_off/")}
    tiers |= {name.split("/")[1]: True for name, off in gauges.items() if name.startswith("tier_off/") and off}
    line: dict[str, str] = {}
    if asked := counters.get("prompt_tokens", 0):
        levels = _hits(counters, has_tiers=bool(tiers))
        line["kvtide hits"] = " + ".join(f"{percent_text(hits / asked)} {level}" for level, hits in levels.items())
    stored = f"{counters.get('stored_blocks', 0):.0f} blocks"
    line["stored"] = f"{stored} ({size_text(counters.get('transfer_bytes/store', 0))})"
    if tiers:
        line["sunk"] = f"{counters.get('sunk_blocks', 0):.0f} blocks"
    if waiting := gauges.get("backlog_blocks", 0) + gauges.get("slots_writing", 0):
        line["being stored"] = f"{waiting:.0f} blocks"
    if slots := gauges.get("slots", 0):
        line["host"] = f"{1 - gauges.get('slots_free', 0) / slots:.0%} full"
    if (attached := gauges.get("node_attached")) is not None:
        line["node"] = "attached" if attached else "away"
    if failed := counters.get("stores_failed", 0) + counters.get("loads_failed", 0):
        line["failed"] = f"{failed:.0f} copies"
    if off := ", ".join(name for name, is_off in tiers.items() if is_off):
        line["tiers off"] = off
    return line


def _hits(counters: Mapping[str, float], *, has_tiers: bool) -> dict[str, float]:
    """Return the tokens that were found on each level. What comes from a tier is loaded from the host in the end."""
    loaded = counters.get("loaded_tokens", 0)
    device = counters.get("device_tokens", 0)
    if not has_tiers:
        return {"device": device, "host": loaded}
    fetched = loaded * min(1.0, counters.get("fetched_blocks", 0) / max(1, counters.get("loaded_blocks", 0)))
    return {"device": device, "host": loaded - fetched, "tiers": fetched}
