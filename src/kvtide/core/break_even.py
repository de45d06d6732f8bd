"""Whether bringing tokens back pays: measured on this machine, not guessed (F19).

What it costs to compute a token is learned from the steps of the engine, and what it costs to bring some back from what
happens: that differs between host memory and what is below. As long as one of them is not known, it is tried. Now and
then it is tried although it does not seem to pay, so that one bad hour is not believed for ever.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from kvtide.core.linear_fit import LinearFit

RETRY_EVERY = 64
"""Of so many that do not seem to pay one is tried, to see whether that is still so."""
_HALF_LIFE_TOKENS = 16_384
"""After so many tokens more, what was seen before counts half."""


def fade(tokens: float) -> float:
    """Return the weight that older observations keep after one of so many tokens: the more tokens, the less."""
    return math.exp(-math.log(2) * tokens / _HALF_LIFE_TOKENS)


class BreakEven(ABC):
    """Compares the seconds that tokens cost when they are computed and when they are brought back."""

    def __init__(self) -> None:
        self._compute = LinearFit()
        self._declined = 0

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens of prompts in so much time."""
        if tokens > 0:
            self._compute.saw(tokens, seconds, fade=fade(tokens))

    def pays(self, tokens: int) -> bool:
        """Whether bringing so many tokens back is likely to be faster than computing them. Changes nothing."""
        cost_s = self._cost_s(tokens)
        if not self._compute or cost_s is None or self._declined >= RETRY_EVERY - 1:
            return True
        return self._compute_s(tokens) > cost_s

    def _compute_s(self, tokens: int) -> float:
        """Return the seconds that computing so many tokens is likely to take.

        A line, because a step takes its time even for a few tokens: at their price many would seem expensive.
        """
        s_per_token = self._compute.s_per_token
        if s_per_token is None:
            mean_tokens, mean_s = self._compute.mean
            return tokens * mean_s / mean_tokens
        return self._compute.at(tokens, s_per_token)

    def decided(self, *, tried: bool) -> None:
        """Tell what was done after `pays` was asked."""
        self._declined = 0 if tried else self._declined + 1

    @abstractmethod
    def _cost_s(self, tokens: int) -> float | None:
        """Return the seconds that bringing so many tokens back is likely to take; None if that is not known."""
