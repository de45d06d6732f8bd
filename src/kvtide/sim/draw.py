"""Randomness from one seed, the same on every supported Python.

Only `getrandbits` is used: its algorithm has never changed, while `choice`, `shuffle` and `randrange` have.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

CHANCE_ONE = 256
"""Chances are whole numbers out of this many."""


class Draw:
    """A stream of random decisions. Two streams of one seed are made by giving each its own `stream` number."""

    def __init__(self, seed: int, stream: int) -> None:
        # Not a secret: what matters here is that it can be repeated.
        self._bits = random.Random(seed * 8 + stream).getrandbits  # noqa: S311

    def below(self, limit: int) -> int:
        """Return a whole number in `[0, limit)`. The bias of at most one in four billion does not matter here."""
        return self._bits(32) * limit >> 32

    def between(self, low: int, high: int) -> int:
        """Return a whole number in `[low, high]`."""
        return low + (self._bits(32) * (high - low + 1) >> 32)

    def chance(self, out_of_256: int) -> bool:
        """Return True with the given chance. A chance of zero draws nothing."""
        return out_of_256 > 0 and self._bits(8) < out_of_256

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self._bits(32) * len(items) >> 32]

    def skewed(self, low: int, high: int) -> int:
        """Return a whole number in `[low, high]`, small ones far more often than large ones."""
        span = high - low + 1
        return low + (self._bits(32) * (self._bits(32) * span >> 32) >> 32)
