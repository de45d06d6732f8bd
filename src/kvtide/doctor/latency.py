"""How soon a store answers, against the time that requests wait for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from kvtide.doctor.base import Finding, ok, warning
from kvtide.units import seconds_text

ROUND_TRIPS = 20
SECONDS_MAX = 1.0
DEADLINE_SHARE_MAX = 0.2
"""A fetch takes more than one round trip, and brings bytes."""


def round_trip_s(call: Callable[[], object]) -> float:
    """Return how long a call takes: the median of a few, or of fewer where each takes long."""
    times: list[float] = []
    while len(times) < ROUND_TRIPS and sum(times) < SECONDS_MAX:
        begin_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times)


def judge_latency(place: str, seconds: float, deadline_ms: int) -> Finding:
    """Say whether a store answers soon enough for a tier with such a deadline."""
    found = f"{place} answers in {seconds_text(seconds)}"
    if seconds <= DEADLINE_SHARE_MAX * deadline_ms / 1000:
        return ok(found)
    return warning(
        f"{found}, and requests wait {deadline_ms} ms at most",
        'use a store nearer to this machine, or raise "deadline_ms"',
    )
