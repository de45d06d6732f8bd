"""Whether loading from host memory pays: measured on this machine, not guessed (F19).

A load keeps its request waiting, for its bytes and for the steps around it; a short prefix is computed in that time.
What a token costs when it is computed is learned from the steps of the engine, and what a load takes from the loads: a
line through their lengths and times, older ones fading. As long as one of them is not known, prefixes are loaded. Now
and then one is loaded although it does not seem to pay, lest one bad hour is believed for ever.
"""

from __future__ import annotations

from kvtide.core.break_even import RETRY_EVERY, running_mean

_FADE = 0.98
"""What the loads before still weigh when another one has ended."""


class LoadBreakEven:
    """Compares the seconds that tokens take when they are computed and when they are loaded."""

    def __init__(self) -> None:
        self._compute_s_per_token: float | None = None
        self._loads = self._tokens = self._seconds = self._tokens_squared = self._tokens_seconds = 0.0
        """Sums over loads, older ones faded."""
        self._declined = 0

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens of prompts in so much time."""
        if tokens > 0:
            self._compute_s_per_token = running_mean(self._compute_s_per_token, seconds / tokens)

    def loaded(self, tokens: int, seconds: float) -> None:
        """A load of so many tokens kept its request waiting for so long."""
        self._loads = _FADE * self._loads + 1
        self._tokens = _FADE * self._tokens + tokens
        self._seconds = _FADE * self._seconds + seconds
        self._tokens_squared = _FADE * self._tokens_squared + tokens * tokens
        self._tokens_seconds = _FADE * self._tokens_seconds + tokens * seconds

    def pays(self, tokens: int) -> bool:
        """Whether loading so many tokens is likely to be faster than computing them. Changes nothing."""
        if self._compute_s_per_token is None or not self._loads or self._declined >= RETRY_EVERY - 1:
            return True
        return tokens * self._compute_s_per_token > self._load_s(tokens)

    def decided(self, *, loaded: bool) -> None:
        """Tell what was done after `pays` was asked."""
        self._declined = 0 if loaded else self._declined + 1

    def _load_s(self, tokens: int) -> float:
        """Return what a load is likely to take: never less than nothing, nor less than a shorter one."""
        mean_tokens, mean_s = self._tokens / self._loads, self._seconds / self._loads
        variance = self._tokens_squared / self._loads - mean_tokens**2
        covariance = self._tokens_seconds / self._loads - mean_tokens * mean_s
        s_per_token = max(0.0, covariance / variance) if variance > mean_tokens / 1000 else 0.0
        return max(0.0, mean_s + s_per_token * (tokens - mean_tokens))
