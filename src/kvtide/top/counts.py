"""Numbers of `/metrics` by name and labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Series(NamedTuple):
    """One line of `/metrics`: its name, and the labels that tell it from others of that name."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


class Counts(dict[Series, float]):
    """Values of series. Those of a server's engines and models are added up."""

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all series of a name that have these labels; 0 if there is none."""
        return sum(value for _, value in self._of(name, labels))

    def has(self, name: str) -> bool:
        """Whether there is a series of this name."""
        return any(series.name == name for series in self)

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return the sums for each value of a label, in the order of the values."""
        sums: dict[str, float] = {}
        for has, value in self._of(name, labels):
            if label in has:
                sums[has[label]] = sums.get(has[label], 0.0) + value
        return dict(sorted(sums.items()))

    def _of(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[dict[str, str], float]]:
        for series, value in self.items():
            if series.name == name and labels.items() <= (has := dict(series.labels)).items():
                yield has, value


def fell(before: Counts, after: Counts) -> bool:
    """Whether a counter fell or is gone: the server was started again, and all its counters began at 0."""
    return any(value > after.get(series, 0.0) for series, value in before.items())


def difference(before: Counts, after: Counts) -> Counts:
    """Return what was counted between two readings of counters. After a restart, that is all there is."""
    if fell(before, after):
        return Counts(after)
    return Counts({series: value - before.get(series, 0.0) for series, value in after.items()})


def grown(before: Counts, after: Counts) -> Counts:
    """Return what was counted between two readings of a node, whose namespaces come and go."""
    return Counts({series: max(0.0, value - before.get(series, 0.0)) for series, value in after.items()})


def added(parts: list[Counts]) -> Counts:
    """Return the sum of what was counted in several intervals."""
    whole = Counts()
    for part in parts:
        for series, value in part.items():
            whole[series] = whole.get(series, 0.0) + value
    return whole
