"""A backend of a shared store, and the breaker that watches it: also for calls that do not come back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvtide.tiers.backend import Backend, BackendDown
from kvtide.tiers.base import Item, KeyResult, TierKey
from kvtide.tiers.breaker import Breaker
from kvtide.tiers.log_once import LogOnce

_log = logging.getLogger(__name__)


class WatchedBackend(Backend):
    """Passes calls on, says once in the log when the store is lost and when it is back, and knows what is overdue."""

    def __init__(self, backend: Backend, where: str, *, overdue_s: float, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._outage = LogOnce(_log, where, meanwhile="blocks are computed instead, and it is tried again now and then")
        self._overdue_s = overdue_s
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[object, float] = {}
        """When each call that is under way began."""

    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        """Say which keys are there."""
        with self.watch():
            return self._backend.lookup(keys)

    def put(self, items: Sequence[Item]) -> list[KeyResult]:
        """Keep bytes under their keys."""
        with self.watch():
            return self._backend.put(items)

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        """Fill the buffers with verified bytes."""
        with self.watch():
            return self._backend.get(items)

    def clear(self) -> KeyResult:
        """Forget everything of this namespace and rank."""
        with self.watch(may_take_long=True):
            return self._backend.clear()

    def close(self) -> None:
        """Give connections back."""
        self._backend.close()

    def corrupt_records(self) -> int:
        """Return how many records did not verify so far."""
        return self._backend.corrupt_records()

    def wrong_secret_records(self) -> int:
        """Return how many records were encrypted with another key."""
        return self._backend.wrong_secret_records()

    def overdue(self) -> bool:
        """Say whether a call has been under way for longer than any should."""
        limit_s = self._clock() - self._overdue_s
        with self._lock:
            late = any(begin_s < limit_s for begin_s in self._running.values())
        if late:
            self._outage.began("a call has not come back")
        return late

    @contextmanager
    def watch(self, *, may_take_long: bool = False) -> Iterator[None]:
        """Note when a call begins and ends, and how. One that took too long has failed: nobody waits for it."""
        token = object()
        begin_s = self._clock()
        if not may_take_long:
            with self._lock:
                self._running[token] = begin_s
        try:
            yield
            if not may_take_long and self._clock() - begin_s > self._overdue_s:
                raise BackendDown("a call came back too late")
        except BackendDown as down:
            self._outage.began(str(down))
            raise
        finally:
            with self._lock:
                self._running.pop(token, None)
        self._outage.over()


class WatchingBreaker:
    """A breaker that is open as well while a call is overdue: that one has not failed yet, and may never."""

    def __init__(self, breaker: Breaker, watched: WatchedBackend) -> None:
        self._breaker = breaker
        self._watched = watched

    @property
    def state(self) -> str:
        """See `Breaker.state`."""
        return "open" if self._watched.overdue() else self._breaker.state

    def allows(self) -> bool:
        """See `Breaker.allows`."""
        return not self._watched.overdue() and self._breaker.allows()

    def succeeded(self) -> None:
        """See `Breaker.succeeded`."""
        self._breaker.succeeded()

    def failed(self) -> None:
        """See `Breaker.failed`."""
        self._breaker.failed()
