"""How long copies and calls took: real counts in buckets, and the real sum. What metrics show."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

LATENCY_BOUNDS_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets; one more holds what took longer. The default deadline of a tier is one of them."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """A histogram of seconds."""

    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_S) + 1)
    """How many fell into each bucket. Not cumulative."""
    total_s: float = 0.0

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def plus(self, seconds: float) -> Latencies:
        """Return this and one more."""
        at = bisect_left(LATENCY_BOUNDS_S, seconds)
        return Latencies((*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :]), self.total_s + seconds)

    def together(self, other: Latencies) -> Latencies:
        """Return this and another one."""
        counts = tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
        return Latencies(counts, self.total_s + other.total_s)

    def since(self, before: Latencies) -> Latencies:
        """Return what has come since an earlier look."""
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        return Latencies(counts, self.total_s - before.total_s)
