"""A node's numbers under the names that those of servers have, so that both are shown alike.

What engines looked up is its prompt tokens: those that it had came from host memory, the rest was computed.
"""

from __future__ import annotations

from kvtide.top.counts import Counts, Series

NODE = "kvtide_node_"
KVTIDE = "vllm:kvtide_"
SOURCE = "vllm:prompt_tokens_by_source_total"
_COUNTERS = ("stored_blocks_total", "evicted_blocks_total", "not_loaded_total", "not_stored_total")
_GAUGES = {"slots_ready": "slots", "slots_leased": "slots_pinned"}
_IN_USE = ("slots_cached", "slots_writing")


def life_of(gauges: Counts) -> str:
    """Return which life of a node this is; empty: it is no node."""
    return next((dict(series.labels)["epoch"] for series in gauges if series.name == f"{NODE}build_info"), "")


def translate(counters: Counts, gauges: Counts) -> None:
    """Add to what a node has counted what a server would call it, for each namespace."""
    for series, value in list(counters.items()):
        name = series.name.removeprefix(NODE)
        if name in _COUNTERS:
            counters[Series(KVTIDE + name, series.labels)] = value
        elif name == "found_tokens_total":
            asked = counters.get(Series(f"{NODE}asked_tokens_total", series.labels), value)
            for source, tokens in (("external_kv_transfer", value), ("local_compute", asked - value)):
                counters[Series(SOURCE, _with(series, "source", source))] = tokens
    for series, value in list(gauges.items()):
        name = series.name.removeprefix(NODE)
        if name in _GAUGES:
            gauges[Series(KVTIDE + _GAUGES[name], series.labels)] = value
        if name == "slots_ready":  # the node's own slots_free leaves out those that no engine has pinned yet
            used = sum(gauges.get(Series(NODE + of, series.labels), 0.0) for of in _IN_USE)
            gauges[Series(f"{KVTIDE}slots_free", series.labels)] = max(0.0, value - used)
        if name == "slots" and value:
            block_bytes = gauges.get(Series(f"{NODE}namespace_bytes", series.labels), 0.0) / value
            stored = counters.get(Series(f"{NODE}stored_blocks_total", series.labels), 0.0)
            stores = Series(f"{KVTIDE}transfer_bytes_total", _with(series, "direction", "store"))
            counters[stores] = stored * block_bytes


def _with(series: Series, label: str, value: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((*series.labels, (label, value))))
