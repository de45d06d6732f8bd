"""What lies below host memory in a replay: names in the order of their last use, and the time that errands take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvtide.core import Answer, BelowConfig, Errand, Fetch, Lookup, Sink
from kvtide.core.groups import Key
from kvtide.core.wire import Name
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

    def config(self) -> BelowConfig:
        """Return what the core has to know."""
        if self.write == "through":
            return BelowConfig(through=frozenset({"all"}))
        return BelowConfig(on_evict=frozenset({"all"}))


class Below:
    """Keeps names, the least recently used leave first. Reads and writes have a channel each."""

    def __init__(self, model: BelowModel, block_bytes: int) -> None:
        if model.size_bytes < block_bytes:
            raise ConfigError("--disk", model.size_bytes, f"at least one block, {block_bytes} bytes")
        self._model = model
        self._block_bytes = block_bytes
        self._names_max = model.size_bytes // block_bytes
        self._names: OrderedDict[Name, None] = OrderedDict()
        self._read_free_s = self._write_free_s = 0.0
        self.dropped_blocks = 0
        """Blocks that had to leave."""

    def __len__(self) -> int:
        return len(self._names)

    def leading(self, keys: Sequence[Key]) -> int:
        """Return how many of the first keys are here."""
        return next((index for index, key in enumerate(keys) if (GROUP, key) not in self._names), len(keys))

    def begin(self, errand: Errand, now_s: float) -> float:
        """Start an errand; return when it will be over."""
        model = self._model
        if isinstance(errand, Fetch):
            self._read_free_s = max(now_s, self._read_free_s) + self._bytes(errand) / model.read_bytes_per_s
            return self._read_free_s + model.latency_s
        if isinstance(errand, Sink):
            self._write_free_s = max(now_s, self._write_free_s) + self._bytes(errand) / model.write_bytes_per_s
            return self._write_free_s + model.latency_s
        return now_s + min(model.latency_s, model.deadline_s)

    def late_s(self, fetch: Fetch, now_s: float) -> float | None:
        """Return when requests stop waiting for a fetch that was started now; None if they do not.

        They do when no block comes for too long. Waiting while those of others come is left to the break-even.
        """
        model = self._model
        patience_s = max(0.0, model.deadline_s - fetch.waited_s)
        block_s = model.latency_s + self._block_bytes / model.read_bytes_per_s
        return now_s + patience_s if block_s > patience_s else None

    def end(self, errand: Errand, seconds: float) -> Answer:
        """Finish an errand that took so long."""
        if isinstance(errand, Sink):
            return Answer(errand.id, self._put(errand), seconds)
        if not isinstance(errand, Lookup | Fetch):
            self._names.clear()
            return Answer(errand.id, (0,), seconds)
        if isinstance(errand, Lookup) and self._model.latency_s > self._model.deadline_s:
            return Answer(errand.id, (), seconds)
        hits = tuple(position for position, name in enumerate(errand.names) if name in self._names)
        if isinstance(errand, Fetch):
            for position in reversed(hits):
                self._names.move_to_end(errand.names[position])
        return Answer(errand.id, hits, seconds)

    def _put(self, sink: Sink) -> tuple[int, ...]:
        """Keep names, tails before heads: so heads leave last. Return the positions of those that are kept."""
        names = self._names
        for name in reversed(sink.names):
            names[name] = None
            names.move_to_end(name)
        while len(names) > self._names_max:
            names.popitem(last=False)
            self.dropped_blocks += 1
        return tuple(position for position, name in enumerate(sink.names) if name in names)

    def _bytes(self, errand: Fetch | Sink) -> int:
        return len(errand.names) * self._block_bytes
