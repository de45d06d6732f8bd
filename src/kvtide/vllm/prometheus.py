"""kvtide's numbers on vLLM's `/metrics`. Every counter is there from the start, at 0, with every label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, get_args, get_type_hints

import prometheus_client
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from kvtide.copy import Direction
from kvtide.core import Gauges, Metrics
from kvtide.latency import LATENCY_BOUNDS_S
from kvtide.tiers import Verdict
from kvtide.tiers.call_queue import CallName
from kvtide.tiers.config import tier_names
from kvtide.vllm.bucket_histogram import BucketHistogram

PREFIX = "vllm:kvtide_"


class Number(NamedTuple):
    """What a number means, and its labels beside vLLM's own with all their values. Those of TIER are in the options."""

    meaning: str
    labels: Mapping[str, Sequence[str]] = {}

    def of(self, tiers: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Return every set of labels."""
        return product(*(tiers if values is TIER else values for values in self.labels.values()))


TIER: Sequence[str] = ("the names in the options",)
CALLS: Sequence[str] = get_args(CallName)
OUTCOMES = [verdict.value for verdict in Verdict]
DIRECTIONS = [direction.value for direction in Direction]


def _of_the_core(numbers: type[Metrics | Gauges]) -> dict[str, Number]:
    """Return the core's numbers. What is no plain number is counted by reason."""
    hints = get_type_hints(numbers, include_extras=True)
    return {name: Number(hint.__metadata__[0], _reasons(hint.__origin__)) for name, hint in hints.items()}


def _reasons(kind: Any) -> dict[str, Sequence[str]]:
    return {} if kind is int else {"reason": [reason.value for reason in get_args(kind)[0]]}


COUNTERS = {
    **_of_the_core(Metrics),
    "prompt_tokens": Number("Tokens of all requests, when kvtide was first asked for them."),
    "device_tokens": Number("Those of them that the device had already."),
    "tier_keys": Number(
        "Keys that a tier was asked for, by call and outcome, all ranks.",
        {"tier": TIER, "call": CALLS, "outcome": OUTCOMES},
    ),
    "tier_bytes": Number(
        "Bytes put into a tier and got from it, all ranks together.", {"tier": TIER, "call": ["put", "get"]}
    ),
    "tier_corrupt_records": Number("Records that did not verify, and count as misses.", {"tier": TIER}),
    "tier_wrong_secret_records": Number(
        "Records that were encrypted with another key, and count as misses.", {"tier": TIER}
    ),
    "transfers": Number("Transfers between device and host, per rank.", {"direction": DIRECTIONS}),
    "transfer_bytes": Number("Bytes moved between device and host, all ranks together.", {"direction": DIRECTIONS}),
    "packing_saved_bytes": Number(
        "Bytes that were not moved, because blocks are packed, all ranks together.", {"direction": DIRECTIONS}
    ),
    "unpacked_blocks": Number(
        "Blocks that do not pack, whether or not there was a place for them, all ranks together."
    ),
}
GAUGES = {
    **_of_the_core(Gauges),
    "pinned_blocks": Number("Device blocks that stores or loads keep from being reused."),
    "node_attached": Number("1 while the node that keeps host memory is there, 0 while it is not; with a node only."),
    "stopped": Number("1 when a rank cannot copy any more, so that nothing is stored or loaded, else 0."),
    "tier_bytes_used": Number("Bytes that a tier holds.", {"tier": TIER, "rank": ()}),
    "tier_bytes_budget": Number("Bytes that a tier may hold.", {"tier": TIER, "rank": ()}),
    "tier_off": Number("1 while a tier is switched off after failures, else 0.", {"tier": TIER, "rank": ()}),
}
GAUGE_NAMES = {"transfers": "transfers_in_flight"}
"""Where the name of a gauge would be that of a counter."""
HISTOGRAMS = {
    "transfer_seconds": Number("Seconds spent copying, per transfer and rank.", {"direction": DIRECTIONS}),
    "tier_seconds": Number("Seconds that calls to a tier took, per call and rank.", {"tier": TIER, "call": CALLS}),
}


class PromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # vLLM has no type information here
    """Registers the metrics of one API server and feeds them."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type, type],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._engine_labels = per_engine_labelvalues
        self._children: dict[tuple[int, str, str], Any] = {}
        self._metrics: dict[tuple[str, str], Any] = {}
        for name, (meaning, labels) in COUNTERS.items():
            self._metrics["counters", name] = self._counter_cls(PREFIX + name, meaning, [*labelnames, *labels])
        for name, (meaning, labels) in GAUGES.items():
            self._metrics["gauges", name] = self._gauge_cls(
                PREFIX + GAUGE_NAMES.get(name, name), meaning, [*labelnames, *labels], multiprocess_mode="mostrecent"
            )
        self._histograms = self._make_histograms(labelnames)
        self._begin_at_zero(_tiers_of(vllm_config))

    def _make_histograms(self, labelnames: list[str]) -> dict[str, BucketHistogram]:
        """Register histograms. Ray's cannot be given counts of buckets, so there are none with it."""
        if self._histogram_cls is not prometheus_client.Histogram:
            return {}
        made = {
            name: BucketHistogram(PREFIX + name, meaning, [*labelnames, *labels], LATENCY_BOUNDS_S)
            for name, (meaning, labels) in HISTOGRAMS.items()
        }
        for histogram in made.values():
            prometheus_client.REGISTRY.register(histogram)
        return made

    def _begin_at_zero(self, tiers: Sequence[str]) -> None:
        """Make all counters known, so that the first failure is an increase (`rate`, `increase`)."""
        for engine, engine_labels in self._engine_labels.items():
            for name, number in COUNTERS.items():
                for labels in number.of(tiers):
                    self._child(engine, "counters", "/".join((name, *labels)))
            for name, histogram in self._histograms.items():
                for labels in HISTOGRAMS[name].of(tiers):
                    histogram.add([*engine_labels, *labels], [0] * (len(LATENCY_BOUNDS_S) + 1), 0)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take the numbers of one engine."""
        for name, by in transfer_stats_data.get("counters", {}).items():
            self._child(engine_idx, "counters", name).inc(by)
        for name, value in transfer_stats_data.get("gauges", {}).items():
            self._child(engine_idx, "gauges", name).set(value)
        for name, (*counts, total) in transfer_stats_data.get("seconds", {}).items():
            base, *labels = name.split("/")
            if base in self._histograms:
                self._histograms[base].add([*self._engine_labels[engine_idx], *labels], counts, total)

    def _child(self, engine: int, kind: str, name: str) -> Any:
        """Return the metric of one engine and label."""
        key = engine, kind, name
        child = self._children.get(key)
        if child is None:
            base, *labels = name.split("/")
            values = [*self._engine_labels[engine], *labels]
            child = self._children[key] = self._metrics[kind, base].labels(*values)
        return child


def _tiers_of(vllm_config: Any) -> tuple[str, ...]:
    """Return the names of all tiers in the options, as far as they can be read: the connector refuses others."""
    tiers = (vllm_config.kv_transfer_config.kv_connector_extra_config or {}).get("tiers", ())
    if not isinstance(tiers, list | tuple):
        return ()
    return tier_names([str(tier["type"]) for tier in tiers if isinstance(tier, Mapping) and "type" in tier])
