"""Watching several servers at once: a thread for each, so that one that hangs holds up no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from kvtide.top.history import WINDOW_S, History, Server
from kvtide.top.reading import CannotRead, read

TIMEOUT_S = 5.0
"""For one request to a server, from the first byte to the last."""


class Watch:
    """Reads servers until it is closed. All methods may be called from any thread."""

    def __init__(self, urls: Sequence[str], interval_s: float, window_s: float = WINDOW_S) -> None:
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._histories = [History(url, window_s) for url in urls]
        self._rounds = [0] * len(urls)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"kvtide-top-{number}", daemon=True)
            for number in range(len(urls))
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        deadline_s = time.monotonic() + 2 * TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def servers(self) -> list[Server]:
        """Return what is known of each server, in the order of the URLs."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return [history.server() for history in self._histories]

    def rounds(self) -> int:
        """Return how often every server was tried."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return min(self._rounds)

    def _run(self, number: int) -> None:
        try:
            while not self._stop.is_set():
                began_s = time.monotonic()
                self._once(number)
                self._stop.wait(max(0.0, began_s + self._interval_s - time.monotonic()))
        except BaseException as failure:  # raised again where it is seen: in `servers`
            with self._lock:
                self._failure = failure

    def _once(self, number: int) -> None:
        history = self._histories[number]
        try:
            reading = read(history.url, TIMEOUT_S)
        except CannotRead as error:
            with self._lock:
                history.miss(str(error), time.monotonic())
        else:
            with self._lock:
                history.add(reading, time.monotonic())
        with self._lock:
            self._rounds[number] += 1


def read_once(urls: Sequence[str]) -> list[Server]:
    """Read each server once, all at the same time."""
    with Watch(urls, interval_s=3600.0) as watch:
        deadline_s = time.monotonic() + 3 * TIMEOUT_S  # looking up a name has a time limit of its own
        while not watch.rounds() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return watch.servers()
