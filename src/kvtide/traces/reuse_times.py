"""After how long blocks are used again, as far as a recording of some length can tell.

Every use of a block begins a wait for the next one. A wait that the end of the recording cut off is not a block that
never came back: it only tells that it did not within the time that was left. Waits of both kinds give the share that
has come back by a certain age (the estimate of Kaplan and Meier), which depends neither on how long the recording is
nor on what was in the caches when it began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import NamedTuple

FIRST_AGE_S = 0.001
AGE_RATIO = 1.05
AGES_S = list(accumulate(repeat(AGE_RATIO, 460), lambda age_s, ratio: age_s * ratio, initial=FIRST_AGE_S))
"""Waits are counted in bins of 5%, up to about two months, so that memory does not grow with them."""


class Visit(NamedTuple):
    """One prompt: when it came, and the hashes of its full blocks."""

    time_s: float
    hashes: Sequence[int]


@dataclass(slots=True)
class ReuseTimes:
    """Waits for the next use, by age."""

    uses: int = 0
    duration_s: float = 0.0
    reused: list[int] = field(default_factory=lambda: [0] * (len(AGES_S) + 1))
    """Waits that ended with a use, by bin."""
    cut_off: list[int] = field(default_factory=lambda: [0] * (len(AGES_S) + 1))
    """Waits that ended with the recording, by bin."""

    @property
    def uses_per_s(self) -> float:
        """Blocks that prompts ask for in a second."""
        return self.uses / self.duration_s if self.duration_s > 0 else 0.0


def reuse_times(visits: Iterable[Visit]) -> ReuseTimes:
    """Count the waits of a recording."""
    times = ReuseTimes()
    last_s: dict[int, float] = {}
    begin_s: float | None = None
    now_s = 0.0
    for visit in visits:
        begin_s = visit.time_s if begin_s is None else begin_s
        now_s = max(now_s, visit.time_s)  # logs of several processes are not quite in order
        times.uses += len(visit.hashes)
        for value in visit.hashes:
            before_s = last_s.get(value)
            last_s[value] = now_s
            if before_s is not None:
                times.reused[bisect_left(AGES_S, now_s - before_s)] += 1
    times.duration_s = now_s - (begin_s or 0.0)
    for when_s in last_s.values():
        times.cut_off[bisect_left(AGES_S, now_s - when_s)] += 1
    return times
