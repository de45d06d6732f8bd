"""How long steps last: so long at least it takes until a step computes that is not planned yet."""

from __future__ import annotations

import math
import time
from collections import deque

_STEPS = 8


class StepLengths:
    """Of the last few steps. A worker says when each is begun."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._lengths_s: deque[float] = deque(maxlen=_STEPS)
        self._idle = True

    def begin(self, *, idle: bool) -> None:
        """A step begins. `idle`: with nothing to compute."""
        now_s = time.monotonic()
        if self._began_s is not None:
            self._lengths_s.append(now_s - self._began_s)
        self._began_s, self._idle = None if idle else now_s, idle

    @property
    def short_s(self) -> float:
        """How long a short step lasts: the shortest but one, for the first two behind a pause are issued at once.

        Infinite while nothing computes, so that nobody waits, and before anything is known.
        """
        if self._idle or not self._lengths_s:
            return math.inf
        return sorted(self._lengths_s)[min(1, len(self._lengths_s) - 1)]
