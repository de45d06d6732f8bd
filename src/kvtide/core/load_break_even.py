"""Whether loading from host memory pays.

A load keeps its request waiting, for its bytes and for the steps around it; a short prefix is computed in that time.
"""

from __future__ import annotations

from kvtide.core.break_even import BreakEven

_FADE = 0.98
"""What the loads before still weigh when another one has ended."""


class LoadBreakEven(BreakEven):
    """What a load costs is a line through the lengths and times of the loads so far, older ones fading."""

    def __init__(self) -> None:
        super().__init__()
        self._loads = self._tokens = self._seconds = self._tokens_squared = self._tokens_seconds = 0.0
        """Sums over loads, older ones faded."""

    def loaded(self, tokens: int, seconds: float) -> None:
        """A load of so many tokens kept its request waiting for so long."""
        self._loads = _FADE * self._loads + 1
        self._tokens = _FADE * self._tokens + tokens
        self._seconds = _FADE * self._seconds + seconds
        self._tokens_squared = _FADE * self._tokens_squared + tokens * tokens
        self._tokens_seconds = _FADE * self._tokens_seconds + tokens * seconds

    def _cost_s(self, tokens: int) -> float | None:
        """Return a point of the line: never less than nothing, nor less than for a shorter load."""
        if not self._loads:
            return None
        mean_tokens, mean_s = self._tokens / self._loads, self._seconds / self._loads
        variance = self._tokens_squared / self._loads - mean_tokens**2
        covariance = self._tokens_seconds / self._loads - mean_tokens * mean_s
        s_per_token = max(0.0, covariance / variance) if variance > mean_tokens / 1000 else 0.0
        return max(0.0, mean_s + s_per_token * (tokens - mean_tokens))
