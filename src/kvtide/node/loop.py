"""One thread that waits for many descriptors and never for one of them."""

from __future__ import annotations

import heapq
import os
import select
import time
from collections import deque
from collections.abc import Callable

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
POSTED_MAX = 10_000


class Loop:
    """Calls back when a descriptor can be read or written, every `tick_s`, and what other threads have posted.

    Without `selectors`, which cost half as much again as the call itself.
    """

    def __init__(self, tick_s: float = 1.0) -> None:
        self._tick_s = tick_s
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_stopped = False
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        """A heap: when to call back, in which order, and whom."""
        self._timers = 0
        self.work: Callable[[], bool] = lambda: False
        """Called when all who were ready have been. Returns whether there is more to do: who is ready comes between."""
        self.watch(self._wake, READ, self._woken)

    def watch(self, descriptor: int, events: int, callback: Callable[[int], None]) -> None:
        """Call back, with the events, from now on."""
        self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def change(self, descriptor: int, events: int) -> None:
        """Wait for other events of a descriptor. Its end is always told."""
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Call back no more. Before the descriptor is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def post(self, callback: Callable[[], None]) -> None:
        """Let the loop call this soon. From any thread, and from handlers of signals, also when it has ended."""
        if self._wake < 0:
            return
        assert len(self._posted) < POSTED_MAX, "other threads post faster than the loop works"
        self._posted.append(callback)
        os.eventfd_write(self._wake, 1)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call this once, after so long. From a callback."""
        self._timers += 1
        heapq.heappush(self._due, (time.monotonic() + seconds, self._timers, callback))

    def stop(self) -> None:
        """End `run`. From a callback."""
        self._is_stopped = True

    def run(self, tick: Callable[[float], None]) -> None:
        """Work until somebody says stop; `tick` hears the time now and then."""
        callbacks, poll = self._callbacks, self._epoll.poll
        next_s = time.monotonic() + self._tick_s
        more = False
        while not self._is_stopped:
            wake_s = min(next_s, self._due[0][0]) if self._due else next_s
            for descriptor, events in poll(0.0 if more else max(0.0, wake_s - time.monotonic())):
                callback = callbacks.get(descriptor)
                if callback is not None:  # else another callback has closed it just now
                    callback(events)
            more = self.work()
            now_s = time.monotonic()
            while self._due and self._due[0][0] <= now_s:
                heapq.heappop(self._due)[2]()
            if now_s >= next_s:
                next_s = now_s + self._tick_s
                tick(now_s)

    def close(self) -> None:
        """Give the descriptors back."""
        wake, self._wake = self._wake, -1
        self._epoll.close()
        os.close(wake)
        self._callbacks.clear()

    def _woken(self, _: int) -> None:
        os.eventfd_read(self._wake)
        for _ in range(len(self._posted)):  # what these post comes after whoever else waits
            self._posted.popleft()()
