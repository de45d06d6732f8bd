"""When transfers that are under way will be over, as far as those before them tell."""

from __future__ import annotations


class Ends:
    """Of one direction, where transfers come one after the other."""

    def __init__(self, block_s: float) -> None:
        """`block_s`: what a block takes, as long as no transfer has ended."""
        self._block_s = block_s
        self._blocks = self._busy_s = 0.0
        """Of those that have ended. What came before a transfer counts half as much as that."""
        self._last_s = 0.0

    def issued(self, blocks: int, since_s: float) -> float:
        """Return when a transfer will be over that is behind all others, and could begin then."""
        self._last_s = max(self._last_s, since_s) + blocks * self._block_s
        return self._last_s

    def waits(self, blocks: int, free_s: float) -> float:
        """Return when a transfer will be over at the soonest that can begin then."""
        end_s = free_s + blocks * self._block_s
        self._last_s = max(self._last_s, end_s)
        return end_s

    def ended(self, blocks: int, busy_s: float) -> None:
        """Take note of what a transfer took."""
        self._blocks, self._busy_s = self._blocks / 2 + blocks, self._busy_s / 2 + busy_s
        self._block_s = self._busy_s / self._blocks
