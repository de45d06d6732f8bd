"""One server over time: readings become what happened between them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvtide.top.counts import Counts, added, difference, fell, grown
from kvtide.top.figures import Figures, figures
from kvtide.top.reading import Reading
from kvtide.top.state import State, state

INTERVALS_MAX = 300
WINDOW_S = 60.0
"""Figures of "now" are those of the last minute."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The time between two attempts to read; the second one failed if nothing was counted."""

    at_s: float
    seconds: float
    counted: Counts | None
    figures: Figures | None = None
    """What was counted, worked out once."""


@dataclass(frozen=True, slots=True)
class Server:
    """All that can be shown of a server at one moment."""

    url: str
    state: str
    """"waiting" for the first answer, "up" or "down"."""
    why: str
    """Why it is down, or not what it should be; else empty."""
    models: tuple[str, ...]
    restarts: int
    """Seen while watching."""
    now: State | None
    """The last that was read, as the rest: also of a server that is down."""
    since_start: Figures | None
    window: Figures | None
    points: tuple[Figures | None, ...]
    """One for each interval, oldest first; None where the server was down."""


class History:
    """Remembers the readings of one server as far as they are shown."""

    def __init__(self, url: str, window_s: float = WINDOW_S) -> None:
        self.url = url
        self._window_s = window_s
        self._intervals: deque[Interval] = deque(maxlen=INTERVALS_MAX)
        self._last: Reading | None = None
        self._last_s = 0.0
        self._why: str | None = None
        self._restarts = 0

    def add(self, reading: Reading, at_s: float) -> None:
        """Take what a server said."""
        if self._last is not None:
            counted = self._counted(self._last, reading)
            seconds = max(at_s - self._last_s, 1e-3)
            shown = figures(counted, seconds, reading.counters)
            self._intervals.append(Interval(at_s, seconds, counted, shown))
        self._last, self._last_s = reading, at_s
        self._why = "" if reading.has_kvtide else "kvtide is not in use there"

    def _counted(self, before: Reading, after: Reading) -> Counts:
        """Return what was counted between two readings. After a restart, that is all there is."""
        if before.life and before.life == after.life:
            return grown(before.counters, after.counters)
        self._restarts += fell(before.counters, after.counters) or before.life != after.life
        return Counts(after.counters) if after.life else difference(before.counters, after.counters)

    def miss(self, why: str, at_s: float) -> None:
        """Note that it said nothing. What it counts meanwhile is in the interval of its next answer."""
        self._intervals.append(Interval(at_s, 0.0, None))
        self._why = why

    @property
    def is_up(self) -> bool:
        """Whether the last attempt to read was answered."""
        return self._last is not None and not (self._intervals and self._intervals[-1].counted is None)

    def server(self) -> Server:
        """Return what can be shown now."""
        last = self._last
        is_new = last is None and self._why is None
        return Server(
            url=self.url,
            state="up" if self.is_up else "waiting" if is_new else "down",
            why=self._why or "",
            models=last.models if last else (),
            restarts=self._restarts,
            now=state(last) if last else None,
            since_start=figures(last.counters, None, last.counters) if last else None,
            window=self._window(),
            points=tuple(interval.figures for interval in self._intervals),
        )

    def _window(self) -> Figures | None:
        read = [interval for interval in self._intervals if interval.counted is not None]
        recent = [interval for interval in read if interval.at_s > self._last_s - self._window_s] or read[-1:]
        if not recent or self._last is None:
            return None
        counted = added([interval.counted for interval in recent if interval.counted is not None])
        return figures(counted, sum(interval.seconds for interval in recent), self._last.counters)
