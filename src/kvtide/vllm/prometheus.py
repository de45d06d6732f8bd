"""kvtide's numbers on vLLM's `/metrics`."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

PREFIX = "vllm:kvtide_"

COUNTERS = {
    "requests": "Requests that kvtide has seen.",
    "loaded_tokens": "Tokens loaded from host memory instead of being computed.",
    "loaded_blocks": "Blocks loaded from host memory.",
    "loads_failed": "Loads that failed on at least one rank; the requests were computed.",
    "stored_blocks": "Blocks stored in host memory.",
    "stores_failed": "Store transfers that failed on at least one rank.",
    "evicted_blocks": "Blocks evicted from host memory.",
    "preemptions": "Requests that the engine preempted.",
    "resets": "Times that the cache was emptied.",
    "reports_unknown": "Reports about transfers that are not in flight.",
    "reports_repeated": "Second reports of one rank about one transfer.",
    "transfers_overdue": "Transfers that some rank did not report in time.",
    "events_lost": "KV cache events that nobody took in time.",
    "lookups": "Times that a request asked what is below host memory.",
    "fetched_blocks": "Blocks that came up from below host memory.",
    "fetch_missed_blocks": "Blocks that were found below host memory and gone when they were fetched.",
    "fetches_late": "Fetches from below host memory that requests stopped to wait for.",
    "sunk_blocks": "Blocks that went below host memory.",
}
Labelled = tuple[str | tuple[str, ...], str]
"""Label or labels, and documentation."""

LABELLED_COUNTERS: dict[str, Labelled] = {
    "not_stored": ("reason", "Blocks that were computed and are not stored, by reason."),
    "not_loaded": ("reason", "Tokens that were computed and not loaded, by reason."),
    "not_sunk": ("reason", "Blocks that should be below host memory and are not, by reason."),
    "tier_keys": (("tier", "call", "outcome"), "Keys that a tier was asked for, by call and outcome, all ranks."),
    "tier_bytes": (("tier", "call"), "Bytes put into a tier and got from it, all ranks together."),
    "tier_corrupt_records": ("tier", "Records that did not verify, and count as misses."),
    "tier_wrong_secret_records": ("tier", "Records that were encrypted with another key, and count as misses."),
    "transfers": ("direction", "Transfers between device and host, per rank."),
    "transfer_bytes": ("direction", "Bytes moved between device and host, all ranks together."),
}
GAUGES = {
    "slots": "Host slots of each rank.",
    "slots_free": "Host slots that hold nothing.",
    "slots_cached": "Host slots whose block can be loaded.",
    "slots_writing": "Host slots that are being written.",
    "slots_pinned": "Host slots that cannot be evicted now.",
    "store_pins": "Device blocks that stores keep from being reused.",
    "transfers": "Transfers in flight.",
    "backlog_blocks": "Blocks that wait to be stored because too many are pinned.",
    "sink_queue_blocks": "Blocks that wait to go below host memory.",
    "searches": "Requests that wait for what is below host memory.",
    "transfers_unanswered": "Overdue transfers that some rank has not answered for: nothing is loaded or stored.",
    "pinned_blocks": "Device blocks that stores or loads keep from being reused.",
}
LABELLED_GAUGES: dict[str, Labelled] = {
    "tier_bytes_used": (("tier", "rank"), "Bytes that a tier holds."),
    "tier_bytes_budget": (("tier", "rank"), "Bytes that a tier may hold."),
    "tier_off": (("tier", "rank"), "1 while a tier is switched off after failures, else 0."),
}
GAUGE_NAMES = {"transfers": "transfers_in_flight"}
"""Where the name of a gauge would be that of a counter."""
HISTOGRAMS: dict[str, Labelled] = {
    "transfer_seconds": ("direction", "Seconds spent copying, per transfer and rank."),
    "tier_seconds": (("tier", "call"), "Seconds that calls to a tier took, per call and rank."),
}
BUCKETS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


def _labels(label: str | tuple[str, ...]) -> tuple[str, ...]:
    return (label,) if isinstance(label, str) else label


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
        self._metrics: dict[str, Any] = {}
        for name, documentation in COUNTERS.items():
            self._metrics[f"counters/{name}"] = self._counter_cls(PREFIX + name, documentation, labelnames)
        for name, (label, documentation) in LABELLED_COUNTERS.items():
            self._metrics[f"counters/{name}"] = self._counter_cls(
                PREFIX + name, documentation, [*labelnames, *_labels(label)]
            )
        for name, documentation in GAUGES.items():
            self._metrics[f"gauges/{name}"] = self._gauge_cls(
                PREFIX + GAUGE_NAMES.get(name, name), documentation, labelnames, multiprocess_mode="mostrecent"
            )
        for name, (label, documentation) in LABELLED_GAUGES.items():
            self._metrics[f"gauges/{name}"] = self._gauge_cls(
                PREFIX + name, documentation, [*labelnames, *_labels(label)], multiprocess_mode="mostrecent"
            )
        for name, (label, documentation) in HISTOGRAMS.items():
            self._metrics[f"observations/{name}"] = self._histogram_cls(
                PREFIX + name, documentation, [*labelnames, *_labels(label)], buckets=BUCKETS_S
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
            child = self._children[key] = self._metrics[f"{kind}/{base}"].labels(*values)
        return child
