"""A node's status, for people: a screen of 80 columns is enough."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from kvtide.node.tiers.rows import described_tiers
from kvtide.units import given_text, how_many, percent_text, seconds_text, size_text

WIDTH = 80
_NAMES = 10
"""Columns of the names of figures."""


def described(status: Mapping[str, Any]) -> Iterator[str]:
    """Say it in lines."""
    for line in _lines(status):
        indent = " " * (len(line) - len(line.lstrip()) + (1 + _NAMES if line.startswith("  ") else 2))
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    yield f"node {status['epoch']} at {status['socket']}"
    up = f"process {status['pid']}, up {seconds_text(status['up_s'])}"
    yield _named("is", f"{up}, kvtide {status['kvtide']} (protocol {status['protocol']})")
    given = given_text(status["memory_bytes"], status["free_bytes"], "models")
    full = f"; {percent_text(_full(status))} of it holds blocks" if status["namespaces"] else ""
    yield _named("memory", given + full)
    for share in status["shares"]:
        if share["model"]:
            yield _named("share", f"{share['model']}: {given_text(share['bytes'], share['free_bytes'], 'it')}")
    peers = f"{status['connections']:,} of {status['connections_max']:,} connections"
    yield _named("peers", f"{peers}, {status['refused']:,} refused, {status['closed']:,} closed for bad messages")
    if status["last_refused"]:
        yield _named("refused", f"{seconds_text(status['last_refused_s'])} ago, {status['last_refused']}")
    for namespace in status["namespaces"]:
        yield ""
        yield from _namespace(namespace)
        for engine in status["engines"]:
            if engine["namespace"] == namespace["name"]:
                yield from _engine(engine)


def _full(status: Mapping[str, Any]) -> float:
    used = sum(space["bytes"] * space["cached"] / space["slots"] for space in status["namespaces"])
    return float(used / status["memory_bytes"])


def _namespace(space: Mapping[str, Any]) -> Iterator[str]:
    private = " (private: given back with its engine)" if space["private"] else ""
    yield f"namespace {space['name']}: {space['model']}{private}"
    ready = percent_text(space["ready_slots"] / space["slots"])
    yield _named("memory", f"{size_text(space['bytes'])}: {how_many(space['slots'], 'slot')}, {ready} ready")
    for arena in space["arenas"]:
        node = f", {arena['where']}" if arena["where"] else ""
        failure = f", stopped: {arena['failure']}" if arena["failure"] else ""
        yield _named(f"part {arena['part']}", f"{size_text(arena['bytes'])} {arena['pages']}{node}{failure}")
    yield from described_tiers(space)
    full = percent_text(space["cached"] / space["slots"])
    yield _named("blocks", f"{space['cached']:,} ({full}), {space['stored_blocks']:,} stored, {_gone(space)}")
    yield _named("in use", f"{space['leased']:,} leased, {space['writing']:,} being written")
    if space["quarantined"]:
        slots = how_many(space["quarantined"], "slot")
        yield _named("quarantine", f"{slots} that processes of ended engines may still use")
    yield _named("hits", _hits(space))
    for name, unit, reasons in (("not found", "tokens", "not_loaded"), ("not taken", "blocks", "not_stored")):
        said = ", ".join(f"{why} {count:,}" for why, count in _most(space[reasons]))
        if said:
            yield _named(name, f"{said} ({unit})")
    if not space["engines"]:
        yield _named("engines", "none: kept until another model needs the memory")


def _gone(space: Mapping[str, Any]) -> str:
    cleared = f", cleared {how_many(space['clears'], 'time')}" if space["clears"] else ""
    return f"{space['evicted_blocks']:,} evicted{cleared}"


def _hits(space: Mapping[str, Any]) -> str:
    if not space["asked_tokens"]:
        return "nothing was looked up"
    ratio = percent_text(space["found_tokens"] / space["asked_tokens"])
    return f"{ratio} of {how_many(space['asked_tokens'], 'token')}, in {how_many(space['lookups'], 'look-up')}"


def _most(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return those that occurred, the most frequent first."""
    return sorted(((why, count) for why, count in reasons.items() if count), key=lambda each: -each[1])


def _engine(engine: Mapping[str, Any]) -> Iterator[str]:
    holds = f"{how_many(engine['leased'], 'slot')} leased, {engine['writing']:,} being written"
    yield _named("engine", f"{engine['engine']} ({engine['state']}): {holds}")
    for process in engine["processes"]:
        yield _named("", _process(process))


def _process(process: Mapping[str, Any]) -> str:
    rank = f" of rank {process['rank']}" if process["role"] == "worker" else ""
    if process["connected"]:
        state = "connected"
    elif process["quiet"]:
        state = "gone"
    else:
        state = "not connected, and may still copy" if process["watched"] else "not connected, cannot be seen"
    far = f" (it has {process['far']})" if process["far"] else ""
    return f"{process['role']}{rank}: process {process['pid'] or '?'}, {state}{far}"


def _named(name: str, text: str) -> str:
    return f"  {name.ljust(_NAMES)} {text}"
