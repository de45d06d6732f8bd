"""Looking at one server for some time, to say what would help it."""

from __future__ import annotations

import time

from kvtide.errors import ConfigError
from kvtide.progress import progress, waiting
from kvtide.top.figures import Figures
from kvtide.top.history import INTERVALS_MAX, Server
from kvtide.top.state import State
from kvtide.top.watch import Watch, read_once

READINGS = 20
"""A restart between two of them costs what was counted between them."""


def observe(url: str, seconds: float | None) -> tuple[Figures, State]:
    """Return what a server did in the next `seconds`, or (None) since its start, and how it is at the end."""
    if seconds is None:
        with waiting("reading"):
            (server,) = read_once([url])
        return _usable(url, server, server.since_start)
    assert READINGS < INTERVALS_MAX
    with Watch([url], seconds / READINGS, window_s=2 * seconds) as watch:
        server = _look(watch, seconds)
    return _usable(url, server, server.window)


def _look(watch: Watch, seconds: float) -> Server:
    """Wait until all was read; a server that is not there at the beginning is not waited for."""
    with progress(lambda reading: f"{reading * seconds / READINGS:.0f} s") as advance:
        while watch.rounds() <= READINGS:
            (server,) = watch.servers()
            if server.state == "down" and server.now is None:
                break
            advance("looking", max(0, watch.rounds() - 1), READINGS)
            time.sleep(0.02)
    return watch.servers()[0]


def _usable(url: str, server: Server, shown: Figures | None) -> tuple[Figures, State]:
    if server.state != "up" or server.why or shown is None or server.now is None:
        raise ConfigError("URL", url, f"a server that runs kvtide and answers ({server.why or server.state})")
    return shown, server.now
