"""What counters mean: where prompt tokens came from, what was moved, what that saved."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtide.top.counts import Counts
from kvtide.top.node_reading import KVTIDE, NODE

LEVELS = ("device", "host", "tiers")
STORE, LOAD = "store", "load"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Where the prompt tokens of requests came from."""

    device: float | None = 0.0
    """None, as `tiers`: a node does not know."""
    host: float = 0.0
    tiers: float | None = 0.0
    computed: float = 0.0

    @property
    def all(self) -> float:
        """All prompt tokens."""
        return (self.device or 0.0) + self.host + (self.tiers or 0.0) + self.computed

    def share(self, level: str) -> float | None:
        """Return the part of all prompt tokens that came from a level; None if there were none, or nobody knows."""
        tokens: float | None = getattr(self, level)
        return tokens / self.all if self.all and tokens is not None else None


@dataclass(frozen=True, slots=True)
class TierTraffic:
    """What one tier was asked for, all ranks together."""

    put_bytes: float
    got_bytes: float
    found_keys: float
    missing_keys: float
    """Looked up, and not there."""
    failed_keys: float
    corrupt_records: float


@dataclass(frozen=True, slots=True)
class SpaceTraffic:
    """What engines looked up in one namespace of a node, and what that has lost."""

    asked_tokens: float
    found_tokens: float
    missing_tokens: float
    """Its memory did not have their blocks."""
    evicted_blocks: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened in some seconds, or since the server was started."""

    seconds: float | None
    """None: since the server was started."""
    requests: float
    """That got their first token. Of a node: look-ups."""
    tokens: Tokens
    ttft_ms: float | None
    ttft_saved_ms: float | None
    """Of a request, on average: see `saved_s`."""
    moved_bytes: dict[str, float]
    """By direction, "store" and "load"."""
    packing_saved_bytes: float
    """So many less were moved, because blocks are packed."""
    blocks: dict[str, float]
    """Stored, loaded, evicted, fetched, sunk; and unpacked: those that do not pack."""
    trouble: dict[str, float]
    """Loads and stores that failed, transfers overdue."""
    not_loaded: dict[str, float]
    """Tokens, by reason; the most frequent first. As in the next two, without those that did not occur."""
    not_stored: dict[str, float]
    not_sunk: dict[str, float]
    tiers: dict[str, TierTraffic] = field(default_factory=dict)
    spaces: dict[str, SpaceTraffic] = field(default_factory=dict)
    """Of a node, by namespace."""

    def rate(self, count: float) -> float | None:
        """Return a count per second; None where nobody knows of how many seconds it is."""
        return count / self.seconds if self.seconds else None


def figures(counted: Counts, seconds: float | None, since_start: Counts) -> Figures:
    """Read what was counted. What a computed token costs comes from all that the server has counted."""
    first_tokens = counted.total("vllm:time_to_first_token_seconds_count")
    waited_s = counted.total("vllm:time_to_first_token_seconds_sum")
    saved = saved_s(counted, token_cost_s(since_start))
    return Figures(
        seconds=seconds,
        requests=first_tokens + counted.total(f"{NODE}lookups_total"),
        tokens=tokens(counted),
        ttft_ms=1000 * waited_s / first_tokens if first_tokens else None,
        ttft_saved_ms=1000 * saved / first_tokens if first_tokens and saved is not None else None,
        moved_bytes={way: counted.total(f"{KVTIDE}transfer_bytes_total", direction=way) for way in (STORE, LOAD)},
        packing_saved_bytes=counted.total(f"{KVTIDE}packing_saved_bytes_total"),
        blocks={
            name: counted.total(f"{KVTIDE}{name}_blocks_total")
            for name in ("stored", "loaded", "evicted", "fetched", "sunk", "unpacked")
        },
        trouble={
            name: counted.total(f"{KVTIDE}{name}_total")
            for name in ("loads_failed", "stores_failed", "transfers_overdue")
        },
        not_loaded=_reasons(counted, "not_loaded"),
        not_stored=_reasons(counted, "not_stored"),
        not_sunk=_reasons(counted, "not_sunk"),
        tiers={name: _traffic(counted, name) for name in counted.by(f"{KVTIDE}tier_keys_total", "tier")},
        spaces={name: _space(counted, name) for name in counted.by(f"{NODE}asked_tokens_total", "namespace")},
    )


def tokens(counted: Counts) -> Tokens:
    """Return where prompt tokens came from.

    vLLM says which it had on the device, which came from outside and which it computed; older versions say only
    how many it looked up and found. Which of those from outside came from tiers is estimated: the share of loaded
    blocks that had been fetched from there. A node knows what it had, and not what tiers had brought up to it.
    """
    by_source = counted.by("vllm:prompt_tokens_by_source_total", "source")
    if counted.has(f"{NODE}lookups_total"):
        return Tokens(None, by_source.get("external_kv_transfer", 0.0), None, by_source.get("local_compute", 0.0))
    if by_source:
        device = by_source.get("local_cache_hit", 0.0)
        outside = by_source.get("external_kv_transfer", 0.0)
        computed = by_source.get("local_compute", 0.0)
    else:
        device = counted.total("vllm:prefix_cache_hits_total")
        outside = counted.total(f"{KVTIDE}loaded_tokens_total")
        computed = max(0.0, counted.total("vllm:prefix_cache_queries_total") - device - outside)
    loaded = counted.total(f"{KVTIDE}loaded_blocks_total")
    fetched = counted.total(f"{KVTIDE}fetched_blocks_total")
    from_tiers = outside * min(1.0, fetched / loaded) if loaded else 0.0
    return Tokens(device, outside - from_tiers, from_tiers, computed)


def token_cost_s(counted: Counts) -> float | None:
    """Return what computing one prompt token has cost a request, on average; None if nobody knows.

    Prefill takes a step of the engine, whatever is computed, and then so much for each token. The step is taken to be
    as long as the time between two output tokens.
    """
    computed = counted.total("vllm:request_prefill_kv_computed_tokens_sum")
    prefill_s = counted.total("vllm:request_prefill_time_seconds_sum")
    prefills = counted.total("vllm:request_prefill_time_seconds_count")
    between = counted.total("vllm:inter_token_latency_seconds_count")
    step_s = counted.total("vllm:inter_token_latency_seconds_sum") / between if between else 0.0
    return max(0.0, prefill_s - prefills * step_s) / computed if computed else None


def saved_s(counted: Counts, cost_s: float | None) -> float | None:
    """Return the seconds that computing the loaded tokens would have cost, less those that copies of them took.

    With several ranks the copies of all are counted, although they run at the same time: then it is too little.
    """
    if cost_s is None:
        return None
    copying_s = counted.total(f"{KVTIDE}transfer_seconds_sum", direction=LOAD)
    return counted.total(f"{KVTIDE}loaded_tokens_total") * cost_s - copying_s


def _reasons(counted: Counts, name: str) -> dict[str, float]:
    counts = counted.by(f"{KVTIDE}{name}_total", "reason")
    return dict(sorted(((why, count) for why, count in counts.items() if count), key=lambda pair: -pair[1]))


def _traffic(counted: Counts, tier: str) -> TierTraffic:
    def keys(**labels: str) -> float:
        return counted.total(f"{KVTIDE}tier_keys_total", tier=tier, **labels)

    return TierTraffic(
        put_bytes=counted.total(f"{KVTIDE}tier_bytes_total", tier=tier, call="put"),
        got_bytes=counted.total(f"{KVTIDE}tier_bytes_total", tier=tier, call="get"),
        found_keys=keys(call="lookup", outcome="hit"),
        missing_keys=keys(call="lookup", outcome="miss"),
        failed_keys=keys(outcome="failed"),
        corrupt_records=counted.total(f"{KVTIDE}tier_corrupt_records_total", tier=tier),
    )


def _space(counted: Counts, namespace: str) -> SpaceTraffic:
    return SpaceTraffic(
        asked_tokens=counted.total(f"{NODE}asked_tokens_total", namespace=namespace),
        found_tokens=counted.total(f"{NODE}found_tokens_total", namespace=namespace),
        missing_tokens=counted.total(f"{NODE}not_loaded_total", namespace=namespace, reason="not_cached"),
        evicted_blocks=counted.total(f"{NODE}evicted_blocks_total", namespace=namespace),
    )
