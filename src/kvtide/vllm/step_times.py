"""What computing costs: how long steps take that mostly compute prompts."""

from __future__ import annotations

import time
from typing import Any

from kvtide.core import OffloadManager

PREFILL_TOKENS_MIN = 16
"""A step with at least so many tokens for each request mostly computes prompts."""
STEPS_TIMED_MAX = 64
"""Steps whose end is awaited at a time; what became of older ones is not asked any more."""


class StepTimes:
    """Tells the core what computing a token of a prompt costs, if it wants to know."""

    def __init__(self, manager: OffloadManager) -> None:
        self._manager = manager
        self._wanted = manager.config.below is not None or manager.config.min_load_tokens is None
        self._begun: dict[int, tuple[float, int]] = {}
        """When steps were handed out, and their tokens, by a number."""
        self._last = 0
        self._heard_s = 0.0

    def begin(self, step: Any) -> int:
        """Return a number for a step that shall be timed, 0 for others."""
        tokens, requests = step.total_num_scheduled_tokens, len(step.num_scheduled_tokens)
        if not self._wanted or tokens < PREFILL_TOKENS_MIN * max(1, requests):
            return 0  # steps that only decode cost as much for a few tokens as for many
        self._last += 1
        self._begun[self._last] = (time.monotonic(), tokens)
        self._begun.pop(self._last - STEPS_TIMED_MAX, None)
        return self._last

    def end(self, number: int) -> None:
        """Hear which step is over. It began when it was handed out and the last one was over.

        Not from one hand-out to the next: the next one may come at once, before this step, or much later.
        """
        now_s, heard_s = time.monotonic(), self._heard_s
        self._heard_s = now_s
        if number in self._begun:
            began_s, tokens = self._begun.pop(number)
            self._manager.computed(tokens, now_s - max(began_s, heard_s))
