"""kvtide's numbers on vLLM's `/metrics`."""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from kvtide.core import Gauges, Metrics

PREFIX = "vllm:kvtide_"


class Number(NamedTuple):
    """What a number means, and its labels beside vLLM's own."""

    meaning: str
    labels: tuple[str, ...] = ()


def _of_the_core(numbers: type[Metrics | Gauges]) -> dict[str, Number]:
    """Return the core's numbers. What is no plain number is counted by reason."""
    hints = get_type_hints(numbers, include_extras=True)
    return {
        name: Number(hint.__metadata__[0], () if hint.__origin__ is int else ("reason",))
        for name, hint in hints.items()
    }


COUNTERS = {
    **_of_the_core(Metrics),
    "tier_keys": Number("Keys that a tier was asked for, by call and outcome, all ranks.", ("tier", "call", "outcome")),
    "tier_bytes": Number("Bytes put into a tier and got from it, all ranks together.", ("tier", "call")),
    "tier_corrupt_records": Number("Records that did not verify, and count as misses.", ("tier",)),
    "tier_wrong_secret_records": Number(
        "Records that were encrypted with another key, and count as misses.", ("tier",)
    ),
    "transfers": Number("Transfers between device and host, per rank.", ("direction",)),
    "transfer_bytes": Number("Bytes moved between device and host, all ranks together.", ("direction",)),
}
GAUGES = {
    **_of_the_core(Gauges),
    "pinned_blocks": Number("Device blocks that stores or loads keep from being reused."),
    "tier_bytes_used": Number("Bytes that a tier holds.", ("tier", "rank")),
    "tier_bytes_budget": Number("Bytes that a tier may hold.", ("tier", "rank")),
    "tier_off": Number("1 while a tier is switched off after failures, else 0.", ("tier", "rank")),
}
GAUGE_NAMES = {"transfers": "transfers_in_flight"}
"""Where the name of a gauge would be that of a counter."""
HISTOGRAMS = {
    "transfer_seconds": Number("Seconds spent copying, per transfer and rank.", ("direction",)),
    "tier_seconds": Number("Seconds that calls to a tier took, per call and rank.", ("tier", "call")),
}
BUCKETS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


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
        for name, (meaning, labels) in HISTOGRAMS.items():
            self._metrics["observations", name] = self._histogram_cls(
                PREFIX + name, meaning, [*labelnames, *labels], buckets=BUCKETS_S
            )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take the numbers of one engine."""
        for name, by in transfer_stats_data.get("counters", {}).items():
            self._child(engine_idx, "counters", name).inc(by)
        for name, value in transfer_stats_data.get("gauges", {}).items():
            self._child(engine_idx, "gauges", name).set(value)
        for name, values in transfer_stats_data.get("observations", {}).items():
            child = self._child(engine_idx, "observations", name)
            for value in values:
                child.observe(value)

    def _child(self, engine: int, kind: str, name: str) -> Any:
        """Return the metric of one engine and label."""
        key = engine, kind, name
        child = self._children.get(key)
        if child is None:
            base, *labels = name.split("/")
            values = [*self._engine_labels[engine], *labels]
            child = self._children[key] = self._metrics[kind, base].labels(*values)
        return child
