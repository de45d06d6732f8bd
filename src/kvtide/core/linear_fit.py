"""What a number of tokens takes: a line through what was seen, older observations fading."""

from __future__ import annotations


class LinearFit:
    """A straight line through pairs of tokens and seconds: a fixed time, and a time per token.

    Examples:
        >>> fit = LinearFit()
        >>> fit.saw(1000, 1.5)
        >>> fit.saw(3000, 2.5)
        >>> fit.s_per_token, fit.at(2000, fit.s_per_token)
        (0.0005, 2.0)

    """

    def __init__(self) -> None:
        self._count = self._tokens = self._seconds = self._tokens_squared = self._tokens_seconds = 0.0
        """Sums over observations, older ones faded."""

    def saw(self, tokens: float, seconds: float, *, fade: float = 1.0) -> None:
        """So many tokens took so long. `fade` is what everything before still weighs."""
        self._count = fade * self._count + 1
        self._tokens = fade * self._tokens + tokens
        self._seconds = fade * self._seconds + seconds
        self._tokens_squared = fade * self._tokens_squared + tokens * tokens
        self._tokens_seconds = fade * self._tokens_seconds + tokens * seconds

    def __bool__(self) -> bool:
        """Whether anything was seen."""
        return self._count > 0

    @property
    def mean(self) -> tuple[float, float]:
        """Tokens and seconds in the mean."""
        return self._tokens / self._count, self._seconds / self._count

    @property
    def s_per_token(self) -> float | None:
        """The slope, never below 0. None: all lengths were about the same."""
        mean_tokens, mean_s = self.mean
        variance = self._tokens_squared / self._count - mean_tokens**2
        covariance = self._tokens_seconds / self._count - mean_tokens * mean_s
        return max(0.0, covariance / variance) if variance > mean_tokens / 1000 else None

    def at(self, tokens: int, s_per_token: float) -> float:
        """Return the point of a line with this slope through the mean: never less than nothing."""
        mean_tokens, mean_s = self.mean
        return max(0.0, mean_s + s_per_token * (tokens - mean_tokens))
