"""What a memory of some size hits once it has long been in use, from the times after which blocks are used again.

A memory that keeps each block until it was not used for an age `T` hits the share of uses that come within `T`, and
holds, on average, the uses per second times the mean of the waits, none counted for longer than `T` (Denning's working
set). LRU keeps what is younger than some age too, so the same two numbers are its hits and its size.

Ages beyond what the recording can show are extrapolated: blocks are taken to come back as they did at the last ages
that were seen, by the same share whenever the age doubles. Of a long and a short stretch of last ages the one counts
in which fewer came back: that all of them came back after the same time does not mean that more will come later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from kvtide.traces.reuse_times import AGES_S, ReuseTimes

SEEN_SHARE = 0.7
"""Of the recording's length: older ages have too few waits that are still open to tell."""
TAILS_FROM = (1 / 8, 1 / 2)
"""Of the oldest age that was seen: from there on it is looked how blocks come back, to extrapolate."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Hits and room by age, all ascending."""

    ages_s: list[float]
    hit_shares: list[float]
    """Share of the uses that come by this age."""
    blocks: list[float]
    """What a memory has room for that keeps blocks until this age."""
    seen_s: float
    """Ages up to here were seen, older ones are extrapolated."""
    uses_per_s: float
    """0 if all of the recording has the same time: then nothing can be said."""
    reuses: int
    """Uses in the recording of what was used before."""

    def hit_share(self, blocks: float) -> float:
        """Return the share of the uses that hit in a memory of so many blocks."""
        index = bisect_right(self.blocks, blocks)
        return self.hit_shares[index - 1] if index else 0.0

    def age_s(self, blocks: float) -> float:
        """Return for how long a memory of so many blocks keeps what is not used."""
        index = bisect_right(self.blocks, blocks)
        return self.ages_s[index - 1] if index else 0.0


def steady_state(times: ReuseTimes) -> SteadyState:
    """Compute it for what a recording has shown."""
    oldest_s = SEEN_SHARE * times.duration_s
    left, open_waits, room_s, before_s = 1.0, times.uses, 0.0, 0.0
    ages_s, shares, rooms_s = [], [], []
    waited: list[int] = []
    """By age: blocks that could have come back."""
    for index, age_s in enumerate(AGES_S):
        if age_s > oldest_s or not open_waits:
            break
        room_s += left * (age_s - before_s)
        before_s = age_s
        waited.append(open_waits)
        left *= 1 - times.reused[index] / open_waits
        open_waits -= times.reused[index] + times.cut_off[index]
        ages_s.append(age_s)
        shares.append(1 - left)
        rooms_s.append(room_s)
    seen_s = before_s if open_waits else oldest_s  # where all have come back there is nothing more to see
    tails = [bisect_right(ages_s, share * oldest_s) for share in TAILS_FROM]
    stay = 1 - min(_returning(times.reused[tail : len(ages_s)], waited[tail:]) for tail in tails)
    for age_s in AGES_S[len(ages_s) :]:
        room_s += left * (1 + stay) / 2 * (age_s - before_s)
        before_s = age_s
        left *= stay
        ages_s.append(age_s)
        shares.append(1 - left)
        rooms_s.append(room_s)
    rate = times.uses_per_s
    return SteadyState(ages_s, shares, [rate * room for room in rooms_s], seen_s, rate, sum(times.reused))


def _returning(reused: Sequence[int], waited: Sequence[int]) -> float:
    """Return the share of what waits that comes back from one age to the next, over some ages."""
    return sum(reused) / sum(waited) if waited else 0.0
