"""A Prometheus histogram that is given counts of buckets, not single observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import values
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector


class _Child(NamedTuple):
    """The numbers of one set of labels, kept where all API servers of this machine see them if there are several."""

    buckets: list[Any]
    sum: Any


class BucketHistogram(Collector):
    """What others have counted, as they have counted it.

    Values are prometheus_client's own: with PROMETHEUS_MULTIPROC_DIR they are in files, and its collector adds up those
    of all processes. Without, `collect` is asked.
    """

    def __init__(self, name: str, meaning: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name = name  # by which vLLM finds what it has to unregister
        self._meaning = meaning
        self._labels = tuple(labels)
        self._edges = [*map(str, bounds), "+Inf"]
        self._children: dict[tuple[str, ...], _Child] = {}

    def add(self, labels: Sequence[object], counts: Sequence[float], total: float) -> None:
        """Add to the buckets of one set of labels, and to the sum. Zeros make it known."""
        child = self._child(tuple(map(str, labels)))
        for bucket, count in zip(child.buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        child.sum.inc(total)

    def _child(self, labels: tuple[str, ...]) -> _Child:
        child = self._children.get(labels)
        if child is None:
            buckets = [self._value("_bucket", (*self._labels, "le"), (*labels, edge)) for edge in self._edges]
            child = self._children[labels] = _Child(buckets, self._value("_sum", self._labels, labels))
        return child

    def _value(self, suffix: str, names: tuple[str, ...], labels: tuple[str, ...]) -> Any:
        return values.ValueClass("histogram", self._name, self._name + suffix, names, labels, self._meaning)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield all numbers."""
        family = HistogramMetricFamily(self._name, self._meaning, labels=self._labels)
        for labels, child in list(self._children.items()):
            counts = accumulate(bucket.get() for bucket in child.buckets)
            family.add_metric(labels, list(zip(self._edges, counts, strict=True)), child.sum.get())
        yield family
