"""Tiers of a node, as Prometheus knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_LABELS = ["namespace", "tier"]
_GAUGES = {"bytes_used": "Bytes that a tier holds.", "bytes_budget": "Bytes that a tier may hold."}
_COUNTERS = {
    "bytes_put": "Bytes that have sunk to a tier.",
    "bytes_got": "Bytes that were brought up from a tier.",
    "corrupt_records": "Records that did not verify.",
}


def tier_metrics(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield what a status says of tiers."""
    rows = [
        ([namespace["name"], tier["name"]], tier)
        for namespace in status.get("namespaces", ())
        for tier in namespace.get("tiers", ())
    ]
    up = GaugeMetricFamily("kvtide_node_tier_up", "1: in use; 0: not open, or off after failures.", labels=_LABELS)
    keys = CounterMetricFamily(
        "kvtide_node_tier_keys", "Blocks by call and what became of it.", labels=[*_LABELS, "call", "verdict"]
    )
    for labels, tier in rows:
        up.add_metric(labels, int(tier["state"] == "closed"))
        for name, count in tier["keys"].items():
            keys.add_metric([*labels, *name.split()], count)
    yield up
    yield keys
    for families, kind in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
        for name, text in families.items():
            family = kind(f"kvtide_node_tier_{name}", text, labels=_LABELS)
            for labels, tier in rows:
                if tier[name] is not None:
                    family.add_metric(labels, tier[name])
            yield family
