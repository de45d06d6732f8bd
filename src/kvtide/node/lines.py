"""Lines for the operator, written by a thread of their own: a terminal that is stopped does not stop the node."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from kvtide.units import how_many

LINES_MAX = 100
"""In each period, and waiting to be written. A peer that is refused again and again must not fill a disk."""
PERIOD_S = 10.0
ROUTINE_MAX = 20
"""In each period, of what is said of every engine: it must not crowd out what went wrong."""
PEERS_MAX = 50
"""In each period, of who is refused or closed for bad messages: of those there may be any number."""
AGAIN_S = 600.0
"""A refusal for the same reason is said again after so long."""
_STOP_TIMEOUT_S = 2.0


class Bounded:
    """Hands on at most so many lines in each period. Those that are too many are counted, and the next line says so."""

    def __init__(
        self, put: Callable[[str], None], most: int = LINES_MAX, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`put` may raise `queue.Full`: then a line is too many, too."""
        self._put = put
        self._most = most
        self._clock_s = clock_s
        self._period_s = clock_s()
        self._taken = 0
        self._left_out = 0

    def __call__(self, line: str) -> None:
        """Hand on a line, or count it."""
        now_s = self._clock_s()
        if now_s - self._period_s >= PERIOD_S:
            self._period_s, self._taken = now_s, 0
        if self._taken >= self._most:
            self._left_out += 1
            return
        if self._left_out:
            line = f"{line} ({how_many(self._left_out, 'line')} before this one left out)"
        try:
            self._put(line)
        except queue.Full:
            self._left_out += 1
        else:
            self._taken, self._left_out = self._taken + 1, 0


class Lines:
    """Takes lines from any thread, and no more than are bearable."""

    def __init__(self, write: Callable[[str], None], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._queue: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._lock = threading.Lock()
        self._bounded = Bounded(self._queue.put_nowait, clock_s=clock_s)
        self._thread = threading.Thread(target=self._run, name="kvtide-lines", daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        """Write a line, soon."""
        with self._lock:
            self._bounded(line)

    def close(self) -> None:
        """Write what is left, if it can be written soon."""
        try:
            self._queue.put(None, timeout=_STOP_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads any more: there is no place left to say so
                self._write(line)


class News:
    """Tells what was said a while ago from what is new: who is refused tries again, for ever, once a second."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._said_s: dict[str, float] = {}

    def is_new(self, line: str) -> bool:
        """Whether it was not said lately. From now on it was."""
        now_s = self._clock_s()
        if now_s - self._said_s.get(line, -AGAIN_S) < AGAIN_S:
            return False
        if len(self._said_s) >= LINES_MAX:
            self._said_s.clear()
        self._said_s[line] = now_s
        return True
