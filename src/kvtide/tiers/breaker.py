"""Switches a failing store off for a while, so that a dead one costs its deadline once and then nothing (F18)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class Switch:
    """Says whether a store may be used. This one says yes, always."""

    @property
    def state(self) -> str:
        """Return "closed" (in use), "open" (switched off) or "half-open" (one call tries, or may)."""
        return "closed"

    def allows(self) -> bool:
        """Say whether a call may be made now. Whoever got a yes calls one of the following."""
        return True

    def succeeded(self) -> None:
        """Note that a call was answered by the store, whatever the answer was."""

    def failed(self) -> None:
        """Note that the store did not answer, or not in time."""

    def watch(self, call: str) -> AbstractContextManager[None]:
        """Return what a call is made in, and fails if it raises."""
        return nullcontext()


class Breaker(Switch):
    """Counts failures in a row; from `failures_max` on, calls are not allowed until a pause has passed.

    Then exactly one call may try. If it succeeds the breaker is closed; if it fails, the next pause is twice as long,
    up to `backoff_max_s`. A call that may try and never says what became of it is given up after `backoff_max_s`,
    for otherwise a single lost thread would keep the store switched off for good.

    Does no I/O. `clock` gives monotonic seconds. `jitter` gives numbers from 0 up to 1: each pause is shortened by at
    most half, so that engines that lost the same store do not all come back in the same moment. None: no jitter.

    Every call that was allowed is answered by `succeeded` or `failed`, from any thread.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        failures_max: int = 3,
        backoff_s: float = 1.0,
        backoff_max_s: float = 30.0,
        jitter: Callable[[], float] | None = None,
    ) -> None:
        assert failures_max >= 1
        assert 0 < backoff_s <= backoff_max_s
        self._clock = clock
        self._failures_max = failures_max
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._jitter = jitter
        self._lock = threading.Lock()
        # All that follows is read and written under the lock.
        self._failures = 0
        self._pauses = 0
        """Pauses in a row: 0 while closed."""
        self._retry_at_s = 0.0
        self._probing = False

    @property
    def state(self) -> str:
        """See `Switch.state`."""
        with self._lock:
            if not self._pauses:
                return "closed"
            return "half-open" if self._probing or self._clock() >= self._retry_at_s else "open"

    def allows(self) -> bool:
        """Say whether a call may be made now. While half-open, the first who asks gets the only yes."""
        with self._lock:
            if not self._pauses:
                return True
            if self._clock() < self._retry_at_s:
                return False
            # While the probe is out, the time to try again is when it is given up.
            self._probing = True
            self._retry_at_s = self._clock() + self._backoff_max_s
            return True

    def succeeded(self) -> None:
        """See `Switch.succeeded`."""
        with self._lock:
            if self._pauses and not self._probing:
                return  # a call from before the failures: says nothing about now
            self._failures = self._pauses = 0
            self._probing = False

    def failed(self) -> None:
        """See `Switch.failed`."""
        with self._lock:
            if self._pauses and not self._probing:
                return  # calls that were under way when it opened: they do not make the pause longer
            self._failures += 1
            if self._failures >= self._failures_max:
                self._open()

    def _open(self) -> None:
        pause_s = min(self._backoff_max_s, self._backoff_s * 2.0 ** min(self._pauses, 64))
        if self._jitter is not None:
            pause_s *= 1.0 - 0.5 * self._jitter()
        self._pauses += 1
        self._probing = False
        self._retry_at_s = self._clock() + pause_s
