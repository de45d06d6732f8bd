"""Numbers about a trace: how much is used again, after how long, and how much is in use at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtide.traces.errors import TraceError
from kvtide.traces.record import TraceRequest

WINDOWS_S = (10, 30, 60, 120, 300, 600, 1800, 3600)
"""Windows of the working-set curve."""
_FIRST_GAP_S = 0.001
_GAP_RATIO = 1.05
_GAP_EDGES = [_FIRST_GAP_S * _GAP_RATIO**step for step in range(420)]
"""Gaps are counted in bins of 5%, up to about nine days, so that memory does not grow with them."""


@dataclass(slots=True)
class TraceStats:
    """Made by `trace_stats`."""

    requests: int = 0
    sessions: int = 0
    duration_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    uses: int = 0
    """Blocks of all prompts."""
    unique_blocks: int = 0
    used_once: int = 0
    """Blocks that only one prompt has."""
    gaps: list[int] = field(default_factory=lambda: [0] * (len(_GAP_EDGES) + 1))
    """How many uses came so long after the one before, by bin."""
    working_set: dict[int, float] = field(default_factory=dict)
    """By window in seconds: how many different blocks are used within it, on average."""

    @property
    def reuse_ratio(self) -> float:
        """Share of the blocks that were used before: what a cache of any size can hit at most."""
        return 1 - self.unique_blocks / self.uses if self.uses else 0.0

    def gap_s(self, share: float) -> float | None:
        """Return the gap that this share of the reuses did not exceed, to 5%; None without reuse."""
        total = sum(self.gaps)
        left = share * total
        for edge, count in zip(_GAP_EDGES, self.gaps, strict=False):
            left -= count
            if left <= 0 and total:
                return edge
        return None


def trace_stats(requests: Iterable[TraceRequest]) -> TraceStats:
    """Read a trace once."""
    stats = TraceStats()
    last_s: dict[int, float] = {}
    again: set[int] = set()
    sessions: set[str] = set()
    within = dict.fromkeys(WINDOWS_S, 0.0)
    for request in requests:
        stats.requests += 1
        stats.prompt_tokens += request.prompt_tokens
        stats.output_tokens += request.output_tokens
        stats.uses += len(request.hashes)
        stats.duration_s = max(stats.duration_s, request.time_s)
        if request.session is not None:
            sessions.add(request.session)
        for value in request.hashes:
            before_s = last_s.get(value)
            last_s[value] = request.time_s
            if before_s is not None:
                again.add(value)
                gap_s = max(0.0, request.time_s - before_s)
                stats.gaps[bisect_left(_GAP_EDGES, gap_s)] += 1
                for window_s in WINDOWS_S:
                    within[window_s] += min(gap_s, window_s)
    if not stats.requests:
        raise TraceError("the trace has no requests")
    stats.unique_blocks = len(last_s)
    stats.used_once = len(last_s) - len(again)
    stats.sessions = len(sessions)
    _add_last_uses(stats, within, last_s)
    return stats


def _add_last_uses(stats: TraceStats, within: dict[int, float], last_s: dict[int, float]) -> None:
    """Finish the working set: after its last use a block counts for one more window, at most until the end."""
    for window_s, between_s in within.items():
        if 0 < window_s <= stats.duration_s:
            after_s = sum(min(stats.duration_s - when_s, window_s) for when_s in last_s.values())
            stats.working_set[window_s] = (between_s + after_s) / stats.duration_s
