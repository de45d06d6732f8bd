"""A node's status, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvtide.node.tiers.rows import described_tiers
from kvtide.units import percent_text, seconds_text, size_text


def described(status: Mapping[str, Any]) -> Iterator[str]:
    """Say it in lines."""
    process = f"process {status['pid']}, up {seconds_text(status['up_s'])}"
    yield f"node {status['epoch']}: {process}, kvtide {status['kvtide']} (protocol {status['protocol']})"
    yield f"memory: {size_text(status['memory_bytes'])}, of which {size_text(status['free_bytes'])} are for nobody yet"
    yield f"connections: {status['connections']} of {status['connections_max']}"
    for namespace in status["namespaces"]:
        ready = percent_text(namespace["ready_slots"] / namespace["slots"])
        yield f"namespace {namespace['name']}: {namespace['slots']} slots, {ready} ready"
        for arena in namespace["arenas"]:
            node = "" if arena["numa_node"] is None else f", NUMA node {arena['numa_node']}"
            failure = f", stopped: {arena['failure']}" if arena["failure"] else ""
            yield f"  part {arena['part']}: {size_text(arena['bytes'])} {arena['pages']}{node}{failure}"
        yield from described_tiers(namespace)
    for engine in status["engines"]:
        yield f"engine {engine['engine']} ({engine['state']}), namespace {engine['namespace']}"
        for process in engine["processes"]:
            yield f"  {_process(process)}"


def _process(process: Mapping[str, Any]) -> str:
    rank = f" of rank {process['rank']}" if process["role"] == "worker" else ""
    if process["connected"]:
        state = "connected"
    elif process["quiet"]:
        state = "gone"
    else:
        state = "not connected, and may still copy" if process["watched"] else "not connected, cannot be seen"
    return f"{process['role']}{rank}: process {process['pid'] or '?'}, {state}"
