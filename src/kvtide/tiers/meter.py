"""Counts what a tier does."""

from __future__ import annotations

from kvtide.latency import Latencies
from kvtide.tiers.base import TierStats, Verdict
from kvtide.tiers.call_queue import Call, size_of


class Meter:
    """Counts calls that ended. Not locked: the tier does that."""

    def __init__(self) -> None:
        self._stats = TierStats()

    def count(self, call: Call, seconds: float) -> None:
        """Count one call, and how long it took from its ticket to its end."""
        stats = self._stats
        verdicts = [result.verdict for result in call.results]
        for verdict in Verdict:
            if count := verdicts.count(verdict):
                pair = call.name, verdict.value
                stats.keys[pair] = stats.keys.get(pair, 0) + count
        stats.seconds[call.name] = stats.seconds.get(call.name, Latencies()).plus(seconds)
        if call.name == "put":
            stats.bytes_put += _bytes_of_hits(call)
        elif call.name == "get":
            stats.bytes_got += _bytes_of_hits(call)

    def snapshot(self) -> TierStats:
        """Return a copy of the counts."""
        stats = self._stats
        return TierStats(
            keys=dict(stats.keys),
            bytes_put=stats.bytes_put,
            bytes_got=stats.bytes_got,
            seconds=dict(stats.seconds),
        )


def _bytes_of_hits(call: Call) -> int:
    return sum(
        size_of(work) for work, result in zip(call.work, call.results, strict=True) if result.verdict is Verdict.HIT
    )
