"""Whether waiting for a tier pays: measured on this machine, not guessed (F19).

What it costs to compute a token and what it costs to fetch one are learned from what happens. As long as one of them
is not known, it is tried. Now and then it is tried although it does not seem to pay, lest one bad hour is believed
for ever.
"""

from __future__ import annotations

RETRY_EVERY = 64
"""Of so many searches that do not seem to pay one is made, to see whether that is still so."""
_WEIGHT = 0.1
"""Of a new observation, in the running mean."""


class BreakEven:
    """Compares the seconds that tokens cost when they are computed and when they are fetched."""

    def __init__(self) -> None:
        self._compute_s_per_token: float | None = None
        self._fetch_s_per_token: float | None = None
        self._lookup_s = 0.0
        self._declined = 0

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens of prompts in so much time."""
        if tokens > 0:
            self._compute_s_per_token = running_mean(self._compute_s_per_token, seconds / tokens)

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

    def pays(self, tokens: int) -> bool:
        """Whether waiting for so many tokens is likely to be faster than computing them. Changes nothing."""
        if self._compute_s_per_token is None or self._fetch_s_per_token is None:
            return True
        if self._declined >= RETRY_EVERY - 1:
            return True
        return tokens * self._compute_s_per_token > self._lookup_s + tokens * self._fetch_s_per_token

    def decided(self, *, searched: bool) -> None:
        """Tell what was done after `pays` was asked."""
        self._declined = 0 if searched else self._declined + 1


def running_mean(mean: float | None, value: float) -> float:
    """Return a mean that follows what it is told, the latest a little more than those before."""
    return value if mean is None else mean + _WEIGHT * (value - mean)
