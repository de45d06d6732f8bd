"""What lies below host memory in a replay: names in the order of their last use, and the time that errands take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvtide.core import Answer, BelowConfig, Errand, Fetch, Lookup, Sink
from kvtide.core.groups import Key
from kvtide.core.messages import Name
from kvtide.errors import ConfigError
from kvtide.traces.replay_request import GROUP

Write = Literal["through", "evict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowModel:
    """A disk or a shared store, as far as a replay wants to know it."""

    size_bytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    latency_s: float
    """Of every errand, besides its bytes."""
    deadline_s: float
    """A request stops waiting when nothing has come for so long (`deadline_ms` of a tier)."""
    write: Write
    shared: bool
    """All servers have this one together. Otherwise each has one of this size and speed."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("read_bytes_per_s", "write_bytes_per_s", "deadline_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(name, getattr(self, name), "a number above 0")
        if not self.latency_s >= 0:
            raise ConfigError("latency_s", self.latency_s, "0 or more seconds")


def below_config(models: Sequence[BelowModel]) -> BelowConfig | None:
    """Return what the core has to know. None: there is nothing below."""
    if not models:
        return None
    return BelowConfig(
        through=frozenset({"all" for model in models if model.write == "through"}),
        on_evict=frozenset({"all" for model in models if model.write == "evict"}),
    )


class Below:
    """One tier. It keeps names, the least recently used leave first. Reads and writes have a channel each."""

    def __init__(self, model: BelowModel, block_bytes: int) -> None:
        if model.size_bytes < block_bytes:
            raise ConfigError("size_bytes", model.size_bytes, f"at least one block, {block_bytes} bytes")
        self.model = model
        self._block_bytes = block_bytes
        self._names_max = model.size_bytes // block_bytes
        self._names: OrderedDict[Name, None] = OrderedDict()
        self._read_free_s = self._write_free_s = 0.0

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: Name) -> bool:
        return name in self._names

    def wants(self, sink: Sink) -> bool:
        """Whether blocks that sink now are to be kept here."""
        return (self.model.write == "evict") == sink.leaving

    def read(self, blocks: int, now_s: float) -> float:
        """Begin to read; return when that is over."""
        seconds = blocks * self._block_bytes / self.model.read_bytes_per_s
        self._read_free_s = max(now_s, self._read_free_s) + seconds
        return self._read_free_s + self.model.latency_s

    def write(self, blocks: int, now_s: float) -> float:
        """Begin to write; return when that is over."""
        seconds = blocks * self._block_bytes / self.model.write_bytes_per_s
        self._write_free_s = max(now_s, self._write_free_s) + seconds
        return self._write_free_s + self.model.latency_s

    @property
    def answers_lookups(self) -> bool:
        """Whether a lookup is over before its deadline."""
        return self.model.latency_s <= self.model.deadline_s

    def late_s(self, waited_s: float, now_s: float) -> float | None:
        """Return when requests stop waiting for a read that begins now; None if they do not.

        They do when no block comes for too long. Waiting while those of others come is left to the break-even.
        """
        patience_s = max(0.0, self.model.deadline_s - waited_s)
        block_s = self.model.latency_s + self._block_bytes / self.model.read_bytes_per_s
        return now_s + patience_s if block_s > patience_s else None

    def use(self, names: Iterable[Name]) -> None:
        """Take note that names were read, the first one last: so heads leave last."""
        for name in reversed(list(names)):
            self._names.move_to_end(name)

    def keep(self, names: Sequence[Name]) -> None:
        """Keep names, tails before heads."""
        for name in reversed(names):
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > self._names_max:
            self._names.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._names.clear()


class BelowStack:
    """All tiers of one server, nearest first, as the core's errands see them. See `kvtide.tiers.stack`."""

    def __init__(self, tiers: Sequence[Below]) -> None:
        self._tiers = tuple(tiers)

    def leading(self, keys: Sequence[Key]) -> int:
        """Return how many of the first keys are here."""
        return next((index for index, key in enumerate(keys) if not self._has((GROUP, key))), len(keys))

    def begin(self, errand: Errand, now_s: float) -> float:
        """Start an errand; return when it will be over."""
        if isinstance(errand, Fetch):
            for tier, names in self._sources(errand):
                now_s = tier.read(len(names), now_s)
            return now_s
        if isinstance(errand, Sink):
            ends_s = [tier.write(len(errand.names), now_s) for tier in self._tiers if tier.wants(errand)]
            return max(ends_s, default=now_s)
        return now_s + max(min(tier.model.latency_s, tier.model.deadline_s) for tier in self._tiers)

    def late_s(self, fetch: Fetch, now_s: float) -> float | None:
        """Return when requests stop waiting for a fetch that was started now; None if they do not."""
        late_s = [tier.late_s(fetch.waited_s, now_s) for tier, _ in self._sources(fetch)]
        return min((late for late in late_s if late is not None), default=None)

    def end(self, errand: Errand, seconds: float) -> Answer:
        """Finish an errand that took so long."""
        if isinstance(errand, Lookup):
            hits = self._positions(errand.names, [tier for tier in self._tiers if tier.answers_lookups])
        elif isinstance(errand, Fetch):
            for tier, names in self._sources(errand):
                tier.use(names)
            hits = self._positions(errand.names, self._tiers)
        elif isinstance(errand, Sink):
            kept = [tier for tier in self._tiers if tier.wants(errand)]
            for tier in kept:
                tier.keep(errand.names)
            hits = self._positions(errand.names, kept)
        else:
            for tier in self._tiers:
                tier.clear()
            hits = (0,)
        return Answer(errand.id, hits, seconds)

    def _has(self, name: Name) -> bool:
        return any(name in tier for tier in self._tiers)

    def _sources(self, fetch: Fetch) -> list[tuple[Below, list[Name]]]:
        """Return what comes from where: each block from the nearest tier that has it."""
        sources, missing = [], list(fetch.names)
        for tier in self._tiers:
            here = [name for name in missing if name in tier]
            if here:
                sources.append((tier, here))
                missing = [name for name in missing if name not in tier]
        return sources

    @staticmethod
    def _positions(names: Sequence[Name], tiers: Sequence[Below]) -> tuple[int, ...]:
        return tuple(position for position, name in enumerate(names) if any(name in tier for tier in tiers))
