"""The tier that keeps nothing: the type `null`, for tests and for measuring what the rest costs."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.tiers.base import HIT, MISS, CallResult, Item, KeyResult, Tier, TierKey, TierStats
from kvtide.tiers.config import TierConfig
from kvtide.tiers.namespace import Namespace

URL_SCHEMES: tuple[str, ...] = ()
ACCESS: tuple[str, ...] = ()


CONFIG = TierConfig


class NullTier(Tier):
    """Takes everything, forgets it at once, and answers at the next poll."""

    def __init__(self, calls_max: int = 1024) -> None:
        self._calls_max = calls_max
        self._answers: list[CallResult] = []
        self._stats = TierStats()
        self._closed = False

    def lookup(self, ticket: int, keys: Sequence[TierKey]) -> bool:
        """Find nothing."""
        return self._answer("lookup", ticket, MISS, len(keys))

    def put(self, ticket: int, items: Sequence[Item]) -> bool:
        """Keep nothing, and say that it is done: it may have been evicted since."""
        return self._answer("put", ticket, HIT, len(items))

    def get(self, ticket: int, items: Sequence[Item]) -> bool:
        """Find nothing."""
        return self._answer("get", ticket, MISS, len(items))

    def clear(self, ticket: int) -> bool:
        """Have nothing to clear."""
        return self._answer("clear", ticket, HIT, 1)

    def poll(self) -> list[CallResult]:
        """Return the answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def wait(self, timeout_s: float) -> bool:
        """Return at once: nothing is ever under way."""
        return True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Take no more calls."""
        self._closed = True
        return True

    def stats(self) -> TierStats:
        """Return what was asked."""
        return TierStats(keys=dict(self._stats.keys))

    def _answer(self, name: str, ticket: int, result: KeyResult, count: int) -> bool:
        if self._closed or len(self._answers) >= self._calls_max:
            return False
        pair = name, result.verdict.value
        self._stats.keys[pair] = self._stats.keys.get(pair, 0) + count
        self._answers.append(CallResult(ticket, (result,) * count))
        return True


def open_tier(config: TierConfig, namespace: Namespace, slot_bytes_max: int) -> Tier:  # noqa: ARG001 - it needs nothing
    """Open the tier."""
    return NullTier()
