"""A copy engine that moves nothing: for tests of everything around it, and to measure what planning costs."""

from __future__ import annotations

from collections.abc import Iterable

from kvtide.copy.base import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.core.messages import Copy
from kvtide.options import parse_count


class NullCopyEngine(CopyEngine):
    """Completes every transfer at once and calls no fence. No byte changes anywhere."""

    def __init__(self, *, max_transfers: int = 1024) -> None:
        parse_count("max_transfers", max_transfers)
        self._max_transfers = max_transfers
        self._done: dict[int, None] = {}
        self._transfers = dict.fromkeys(Direction, 0)
        self._closed = False

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        """Call the transfer done."""
        if copy.id in self._done:
            return True
        if self._closed or len(self._done) >= self._max_transfers:
            return False
        self._done[copy.id] = None
        self._transfers[direction] += 1
        return True

    def poll(self) -> Finished:
        """Return what was submitted since the last call."""
        done, self._done = tuple(self._done), {}
        return Finished(done=done)

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Return True: nothing is ever under way."""
        return True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Take no more transfers."""
        self._closed = True
        return True

    def traffic(self, direction: Direction) -> Traffic:
        """Return how many transfers there were; they had no bytes and took no time."""
        return Traffic(transfers=self._transfers[direction])
