"""Whether waiting for a tier below host memory pays."""

from __future__ import annotations

from kvtide.core.break_even import BreakEven, fade

_NEWEST = 0.1
"""The weight of the last lookup in the mean of all."""


class FetchBreakEven(BreakEven):
    """Fetching takes the time of a lookup, and the same time for each token."""

    def __init__(self) -> None:
        super().__init__()
        self._fetched_tokens = self._fetched_s = 0.0
        self._lookup_s = 0.0

    def looked_up(self, seconds: float) -> None:
        """A lookup took so long."""
        self._lookup_s += _NEWEST * (seconds - self._lookup_s)

    def fetched(self, tokens: float, seconds: float) -> None:
        """So many tokens have come up in so much time.

        What counts is the rate of the tier, not how long one fetch took that had to wait behind others: computing would
        have had to wait as well.
        """
        if tokens > 0:
            self._fetched_tokens = fade(tokens) * self._fetched_tokens + tokens
            self._fetched_s = fade(tokens) * self._fetched_s + seconds

    def _cost_s(self, tokens: int) -> float | None:
        if not self._fetched_tokens:
            return None
        return self._lookup_s + tokens * self._fetched_s / self._fetched_tokens
