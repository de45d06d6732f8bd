"""Watches a shared store: a breaker that also knows of calls that do not come back, and says so in the log."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvtide.tiers.backend import Backend, BackendDown
from kvtide.tiers.breaker import Breaker, Switch
from kvtide.tiers.config import TierConfig
from kvtide.tiers.log_once import LogOnce
from kvtide.tiers.queued import QueuedTier

_MAY_TAKE_LONG = ("join", "clear")
_log = logging.getLogger(__name__)


class Watchdog(Switch):
    """A breaker that is open as well while a call is overdue: that one has not failed yet, and may never."""

    def __init__(self, breaker: Breaker, place: str, *, overdue_s: float, clock: Callable[[], float]) -> None:
        self._breaker = breaker
        self._log = LogOnce(_log, place, meanwhile="blocks are computed instead, and it is tried again now and then")
        self._overdue_s = overdue_s
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[object, float] = {}
        """When each call that is under way began."""

    @contextmanager
    def watch(self, call: str) -> Iterator[None]:
        """Note when a call begins and ends, and how. One that took too long has failed: nobody waits for it."""
        token = object()
        begin_s = self._clock()
        may_take_long = call in _MAY_TAKE_LONG
        if not may_take_long:
            with self._lock:
                self._running[token] = begin_s
        try:
            yield
            if not may_take_long and self._clock() - begin_s > self._overdue_s:
                raise BackendDown("a call came back too late")
        except BackendDown as down:
            self._log.began(str(down))
            raise
        finally:
            with self._lock:
                self._running.pop(token, None)
        self._log.over()

    @property
    def state(self) -> str:
        """See `Switch.state`."""
        return "open" if self._overdue() else self._breaker.state

    def allows(self) -> bool:
        """See `Switch.allows`."""
        return not self._overdue() and self._breaker.allows()

    def succeeded(self) -> None:
        """See `Switch.succeeded`."""
        self._breaker.succeeded()

    def failed(self) -> None:
        """See `Switch.failed`."""
        self._breaker.failed()

    def _overdue(self) -> bool:
        """Say whether a call has been under way for longer than any should."""
        limit_s = self._clock() - self._overdue_s
        with self._lock:
            late = any(begin_s < limit_s for begin_s in self._running.values())
        if late:
            self._log.began("a call has not come back")
        return late


def watched_tier(
    backend: Backend,
    config: TierConfig,
    *,
    failures_max: int,
    overdue_deadlines: int,
    calls_max: int,
    part_bytes: int = 8 << 20,
) -> QueuedTier:
    """Make a tier of a shared store's backend, and try once to reach the store.

    A call is overdue after so many deadlines; after so many failures in a row the tier is switched off for a while.
    """
    breaker = Breaker(time.monotonic, failures_max=failures_max, jitter=random.random)
    overdue_s = overdue_deadlines * config.deadline_ms / 1000
    watchdog = Watchdog(breaker, config.place, overdue_s=overdue_s, clock=time.monotonic)
    try:
        with watchdog.watch("join"):
            backend.join()
    except BackendDown:
        watchdog.failed()
    return QueuedTier(
        backend,
        threads=config.threads,
        calls_max=calls_max,
        part_bytes=part_bytes,
        breaker=watchdog,
        name=f"{config.type}-{config.index}",
    )
