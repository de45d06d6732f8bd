"""Whether loading from host memory pays.

A load keeps its request waiting, for its bytes and for the steps around it; a short prefix is computed in that time.
"""

from __future__ import annotations

from kvtide.core.break_even import BreakEven
from kvtide.core.linear_fit import LinearFit

_FADE = 0.98
"""What the loads before still weigh when another one has ended."""


class LoadBreakEven(BreakEven):
    """What a load costs is a line through the lengths and times of the loads so far, older ones fading."""

    def __init__(self) -> None:
        super().__init__()
        self._loads = LinearFit()

    def loaded(self, tokens: int, seconds: float) -> None:
        """A load of so many tokens kept its request waiting for so long."""
        self._loads.saw(tokens, seconds, fade=_FADE)

    def _cost_s(self, tokens: int) -> float | None:
        return self._loads.at(tokens, self._loads.s_per_token or 0.0) if self._loads else None


class FixedBreakEven(LoadBreakEven):
    """A number of tokens that was set by hand (`min_load_tokens`)."""

    def __init__(self, min_tokens: int) -> None:
        super().__init__()
        self._min_tokens = min_tokens

    def pays(self, tokens: int) -> bool:
        """Whether these are enough, whatever they have cost so far."""
        return tokens >= self._min_tokens
