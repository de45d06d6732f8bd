"""Whether waiting for a tier below host memory pays."""

from __future__ import annotations

from kvtide.core.break_even import BreakEven, running_mean


class FetchBreakEven(BreakEven):
    """A fetch costs a lookup, and as much again for each token."""

    def __init__(self) -> None:
        super().__init__()
        self._fetch_s_per_token: float | None = None
        self._lookup_s = 0.0

    def looked_up(self, seconds: float) -> None:
        """A lookup took so long."""
        self._lookup_s = running_mean(self._lookup_s, seconds)

    def fetched(self, tokens: float, seconds: float) -> None:
        """So many tokens have come up in so much time.

        What counts is the rate of the tier, not how long one fetch took that had to wait behind others: computing would
        have had to wait as well.
        """
        if tokens > 0:
            self._fetch_s_per_token = running_mean(self._fetch_s_per_token, seconds / tokens)

    def _cost_s(self, tokens: int) -> float | None:
        return None if self._fetch_s_per_token is None else self._lookup_s + tokens * self._fetch_s_per_token
