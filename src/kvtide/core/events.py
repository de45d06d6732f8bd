"""The stream of stored and removed keys, for routers and for tests."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.core.groups import Key
from kvtide.core.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Stored:
    """These keys of a group can be loaded from now on. Consecutive blocks of one prefix."""

    group: int
    keys: tuple[Key, ...]
    parent: Key | None


@dataclass(frozen=True, slots=True)
class Removed:
    """These keys of a group cannot be loaded any more."""

    group: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing that was stored before can be loaded any more."""


@dataclass(frozen=True, slots=True)
class EventsLost:
    """Nobody took the events in time: what a listener knows is out of date."""


CacheEvent = Stored | Removed | Cleared | EventsLost

EVENTS_MAX = 65_536


class EventStream:
    """Collects events until they are taken. Bounded: a listener that falls behind is told so."""

    def __init__(self, enabled: bool, metrics: Metrics) -> None:
        self.enabled = enabled
        self._metrics = metrics
        self._events: list[CacheEvent] = []

    def add(self, event: CacheEvent) -> None:
        """Append an event, if anyone wants events at all."""
        if not self.enabled:
            return
        if len(self._events) >= EVENTS_MAX:
            self._metrics.events_lost += sum(not isinstance(lost, EventsLost) for lost in self._events)
            self._events = [EventsLost()]
        self._events.append(event)

    def take(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first."""
        events, self._events = self._events, []
        return events
