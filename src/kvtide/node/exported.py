"""A node's status as Prometheus knows it. Counters are there from the start, at 0, with every reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

PREFIX = "kvtide_node_"
_GAUGES = {
    "up_s": ("up_seconds", "Seconds since the node was started."),
    "memory_bytes": ("memory_bytes", "Memory for blocks."),
    "free_bytes": ("free_bytes", "Memory that no namespace has."),
    "connections": ("connections", "Connections of engines and operators."),
    "connections_max": ("connections_max", "Connections that there is room for."),
}
_COUNTERS = {
    "refused": "Connections that were refused.",
    "closed": "Connections that were closed because of what they sent.",
}
_ENGINES = ("open", "ending")
_OF_SPACE = ("namespace", "model")
_SPACE_GAUGES = {
    "bytes": ("namespace_bytes", "Memory of a namespace."),
    "engines": ("namespace_engines", "Lives of engines in a namespace, open or ending."),
    "slots": ("slots", "Host slots of a namespace."),
    "ready_slots": ("slots_ready", "Host slots whose memory is there by now."),
    "free": ("slots_free", "Host slots that hold nothing, and that engines can use by now."),
    "cached": ("slots_cached", "Host slots whose block can be loaded."),
    "leased": ("slots_leased", "Host slots that engines may read, once for each lease."),
    "writing": ("slots_writing", "Host slots that are being written."),
    "quarantined": ("slots_quarantined", "Host slots that processes of ended engines may still read or write."),
}
_SPACE_COUNTERS = {
    "lookups": "Look-ups of engines.",
    "asked_tokens": "Tokens that engines looked up, beyond what their devices had.",
    "found_tokens": "Tokens that were found, and leased.",
    "stored_blocks": "Blocks stored in host memory.",
    "evicted_blocks": "Blocks evicted from host memory.",
    "clears": "Times that an operator has cleared a namespace.",
    "calls_unknown": "Calls about leases and runs that are not there.",
}
_SPACE_REASONS = {
    "not_loaded": "Tokens that were looked up and not found, by reason.",
    "not_stored": "Blocks that engines offered and that were not taken, by reason.",
}


def exported(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield what a status says. Nothing, before there is one."""
    if not status:
        return
    told = {name: str(status[name]) for name in ("epoch", "kvtide", "protocol", "policy")}
    yield InfoMetricFamily(f"{PREFIX}build", "The life of the node, its version and its policy.", told)
    for key, (name, text) in _GAUGES.items():
        yield GaugeMetricFamily(PREFIX + name, text, status[key])
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(PREFIX + name, text, status[name])
    states = [engine["state"] for engine in status["engines"]]
    engines = GaugeMetricFamily(f"{PREFIX}engines", "Lives of engines, open or ending.", labels=["state"])
    for state in _ENGINES:
        engines.add_metric([state], states.count(state))
    yield engines
    yield from _of_shares(status["shares"])
    yield from _of_namespaces(status["namespaces"])


def _of_shares(shares: list[Mapping[str, Any]]) -> Iterator[Metric]:
    texts = {"bytes": "Memory that waits for a model.", "free_bytes": "What no namespace of that model has."}
    for key, text in texts.items():
        family = GaugeMetricFamily(f"{PREFIX}share_{key}", f"{text} Without a model: for all others.", labels=["model"])
        for share in shares:
            family.add_metric([share["model"]], share[key])
        yield family


def _of_namespaces(namespaces: list[Mapping[str, Any]]) -> Iterator[Metric]:
    labels = [(space, [space["name"], space["model"]]) for space in namespaces]
    for key, (name, text) in _SPACE_GAUGES.items():
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=_OF_SPACE)
        for space, values in labels:
            gauge.add_metric(values, space[key])
        yield gauge
    for name, text in _SPACE_COUNTERS.items():
        counter = CounterMetricFamily(PREFIX + name, text, labels=_OF_SPACE)
        for space, values in labels:
            counter.add_metric(values, space[name])
        yield counter
    for name, text in _SPACE_REASONS.items():
        reasons = CounterMetricFamily(PREFIX + name, text, labels=(*_OF_SPACE, "reason"))
        for space, values in labels:
            for why, count in space[name].items():
                reasons.add_metric([*values, why], count)
        yield reasons
