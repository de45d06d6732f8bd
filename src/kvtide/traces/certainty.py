"""How sure a recommendation can be from a recording of some length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvtide.traces.reuse_times import Visit, reuse_times
from kvtide.traces.steady_state import steady_state
from kvtide.traces.worth import Economy, best_size, worth
from kvtide.units import percent_text, seconds_text, size_text

Level = Literal["high", "medium", "low"]
_NEAR = 2
"""Halves of the recording that differ by one step of sizes say about the same."""


@dataclass(frozen=True, slots=True)
class Certainty:
    """What speaks for a recommendation and against it."""

    level: Level
    recording_s: float
    seen_s: float
    """Up to this age the recording shows whether blocks come back."""
    matters_s: float | None
    """Blocks older than this do not matter: with what is recommended they are gone, or not worth keeping.

    None: those of any age do, because memory costs nothing.
    """
    halves_bytes: tuple[int, int]
    """What each half of the recording alone would have recommended."""
    added_share_halves: tuple[float, float]
    """What the recommended size adds in steady state, of the blocks that prompts ask for, by each half alone."""

    @property
    def text(self) -> str:
        """The same in words."""
        first, second = (size_text(size) if size else "none" for size in self.halves_bytes)
        halves = f"its halves alone say {first} and {second}"
        if any(self.added_share_halves):
            low, high = (percent_text(share) for share in sorted(self.added_share_halves))
            halves += f", and that what is recommended adds {low} to {high} in the long run"
        if self.matters_s == 0:
            return f"Certainty: {self.level}. The rates of link and prefill decide, whatever the recording."
        if self.matters_s is not None and self.seen_s >= self.matters_s:
            seen = f"which shows all that matters ({seconds_text(self.matters_s)})"
        else:
            matters = "every age" if self.matters_s is None else f"up to {seconds_text(self.matters_s)}"
            seen = (
                f"which shows what comes back within {seconds_text(self.seen_s)}; {matters} matters, and the rest is "
                f"extrapolated"
            )
        return f"Certainty: {self.level}. The recording has {seconds_text(self.recording_s)}, {seen}; {halves}."


def certainty(
    visits: Sequence[Visit],
    *,
    chosen_bytes: int,
    device_blocks: float,
    economy: Economy,
    sizes: Sequence[int],
) -> Certainty:
    """Look at the whole recording and at each half of it."""
    whole = steady_state(reuse_times(visits))
    middle_s = (visits[0].time_s + visits[-1].time_s) / 2
    halves = [
        steady_state(reuse_times(visit for visit in visits if (visit.time_s > middle_s) == later))
        for later in (False, True)
    ]
    best = tuple(best_size(half, device_blocks, economy, sizes).host_bytes for half in halves)
    added = tuple(worth(half, device_blocks, economy, chosen_bytes).added_share for half in halves)
    matters_s = 0.0 if economy.loading_is_slower else economy.pays_within_s
    if chosen_bytes:
        matters_s = min(matters_s, whole.age_s(chosen_bytes // economy.block_bytes))
    level: Level = "high"
    if 2 * whole.seen_s < matters_s or not _all_near((*best, chosen_bytes)):
        level = "low"
    elif whole.seen_s < matters_s or len({*best, chosen_bytes}) > 1:
        level = "medium"
    return Certainty(
        level,
        visits[-1].time_s - visits[0].time_s,
        whole.seen_s,
        matters_s if math.isfinite(matters_s) else None,
        (best[0], best[1]),
        (added[0], added[1]),
    )


def _all_near(sizes: Sequence[int]) -> bool:
    """Whether sizes differ by one step at most; none is near none only."""
    return max(sizes) <= _NEAR * min(sizes)
