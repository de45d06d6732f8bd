"""Numbers for vLLM's metrics: what happened since the last time, as plain data that survives the way to the API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from kvtide.copy import Direction, Traffic
from kvtide.core import Metrics, OffloadManager
from kvtide.latency import Latencies
from kvtide.tiers import TierStats
from kvtide.vllm.log_line import log_line
from kvtide.vllm.requests import Requests

OF_HOST_POOL = ("slots", "slots_free", "slots_cached", "slots_writing", "slots_pinned", "sink_queue_blocks")
"""Gauges of host memory that this engine has itself."""
INTERVAL_S = 1.0
"""The scheduler side's numbers are handed over this often; looking at all gauges takes time."""


@dataclass
class StepStats(KVConnectorStats):  # type: ignore[misc]  # vLLM has no type information here
    """Counters and times add up, gauges are the latest. All by "name" or "name/label"."""

    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start empty unless there is data from another process."""
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.data = {"counters": {}, "gauges": {}, "seconds": {}}

    def count(self, name: str, by: float) -> None:
        """Add to a counter."""
        if by:
            self.data["counters"][name] = self.data["counters"].get(name, 0) + by

    def add_seconds(self, name: str, numbers: list[float]) -> None:
        """Add to a histogram: how many fell into each of its buckets, and the sum of their seconds."""
        before = self.data["seconds"].get(name, [0] * len(numbers))
        self.data["seconds"][name] = [old + new for old, new in zip(before, numbers, strict=True)]

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Join with another rank's numbers, or the other role's."""
        assert isinstance(other, StepStats)
        for name, by in other.data["counters"].items():
            self.count(name, by)
        self.data["gauges"].update(other.data["gauges"])
        for name, numbers in other.data["seconds"].items():
            self.add_seconds(name, numbers)
        return self

    def reduce(self) -> dict[str, str]:
        """Return what belongs into vLLM's log line; vLLM expects numbers, and puts "=" between names and any text."""
        return log_line(self.data["counters"], self.data["gauges"])

    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not any(self.data.values())


class _Totals:
    """Running totals: what they have grown by since the last time, now and then."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self._told_seconds: dict[str, Latencies] = {}
        self._next_s = 0.0

    def _is_time(self, *, at_once: bool = False) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s and not at_once:
            return False
        self._next_s = now_s + INTERVAL_S
        return True

    def _count(self, stats: StepStats, name: str, total: float) -> None:
        stats.count(name, total - self._told.get(name, 0))
        self._told[name] = total

    def _add_seconds(self, stats: StepStats, name: str, total: Latencies) -> None:
        news = total.since(self._told_seconds.get(name, Latencies()))
        self._told_seconds[name] = total
        if news.count:
            stats.add_seconds(name, [*news.counts, news.total_s])


class CoreStats(_Totals):
    """The totals of the core as counters and gauges."""

    def take(
        self,
        manager: OffloadManager,
        requests: Requests,
        count_pins: Callable[[], int],
        *,
        idle: bool,
        attached: bool | None = None,
    ) -> StepStats | None:
        """Return what changed since the last call; None before the interval is over, unless all work is done.

        `attached`: whether the node that keeps host memory is there. It alone knows how full that is.
        """
        if not self._is_time(at_once=idle and not manager.busy):
            return None
        stats = StepStats()
        for name, count in _counts(manager.metrics).items():
            self._count(stats, name, count)
        self._count(stats, "prompt_tokens", requests.prompt_tokens)
        self._count(stats, "device_tokens", requests.device_tokens)
        gauges = manager.gauges()
        stats.data["gauges"] = {
            name: getattr(gauges, name) for name in gauges.__slots__ if attached is None or name not in OF_HOST_POOL
        }
        if attached is not None:
            stats.data["gauges"]["node_attached"] = int(attached)
        stats.data["gauges"] |= {"pinned_blocks": count_pins(), "stopped": int(requests.stopped)}
        return stats


def _counts(metrics: Metrics) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in (number.name for number in fields(metrics)):
        value = getattr(metrics, name)
        if isinstance(value, Counter):
            counts.update((f"{name}/{reason.value}", count) for reason, count in value.items())
        else:
            counts[name] = value
    return counts


def summary(metrics: Metrics) -> str:
    """Say in one line what it was all good for."""
    return (
        f"{metrics.requests} requests, {metrics.loaded_tokens} tokens loaded, {metrics.stored_blocks} blocks stored, "
        f"{metrics.evicted_blocks} evicted, {metrics.loads_failed} loads and {metrics.stores_failed} stores failed; "
        f"blocks not stored: {_reasons(metrics.not_stored)}; tokens not loaded: {_reasons(metrics.not_loaded)}"
    )


def _reasons(counts: Counter[Any]) -> str:
    return ", ".join(f"{count} {reason.value}" for reason, count in counts.most_common() if count) or "none"


class RankStats(_Totals):
    """The totals of a rank's copy engine and tiers as counters, gauges and times."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self._stats = StepStats()

    def take(self, ask_tiers: Callable[[], Mapping[str, TierStats]]) -> StepStats | None:
        """Return what was not told yet: at once what was copied, and now and then what the tiers did."""
        if self._is_time():
            for name, stats in ask_tiers().items():
                self._add_tier(name, stats)
        if self._stats.is_empty():
            return None
        taken, self._stats = self._stats, StepStats()
        return taken

    def copied(self, direction: Direction, now: Traffic) -> None:
        """Take new totals."""
        label = direction.value
        self._count(self._stats, f"transfers/{label}", now.transfers)
        self._count(self._stats, f"transfer_bytes/{label}", now.bytes)
        self._add_seconds(self._stats, f"transfer_seconds/{label}", now.seconds)
        self._count(self._stats, f"packing_saved_bytes/{label}", now.saved_bytes)
        if direction is Direction.STORE:
            self._count(self._stats, "unpacked_blocks", now.unpacked_blocks)

    def _add_tier(self, tier: str, now: TierStats) -> None:
        stats = self._stats
        for (call, verdict), keys in now.keys.items():
            self._count(stats, f"tier_keys/{tier}/{call}/{verdict}", keys)
        self._count(stats, f"tier_bytes/{tier}/put", now.bytes_put)
        self._count(stats, f"tier_bytes/{tier}/get", now.bytes_got)
        self._count(stats, f"tier_corrupt_records/{tier}", now.corrupt_records)
        self._count(stats, f"tier_wrong_secret_records/{tier}", now.wrong_secret_records)
        for call, seconds in now.seconds.items():
            self._add_seconds(stats, f"tier_seconds/{tier}/{call}", seconds)
        gauges = stats.data["gauges"]
        gauges[f"tier_off/{tier}/{self._rank}"] = int(now.breaker != "closed")
        if now.bytes_used is not None:
            gauges[f"tier_bytes_used/{tier}/{self._rank}"] = now.bytes_used
        if now.bytes_budget is not None:
            gauges[f"tier_bytes_budget/{tier}/{self._rank}"] = now.bytes_budget
