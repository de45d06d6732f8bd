"""The client's calls that move bytes: made by `Waiters`, a few at a time in each direction.

More than one, because a batch costs a round trip to the master before its first byte and a moment after its last, and
the network should have another one to carry meanwhile.
"""

from __future__ import annotations

from typing import Any

from kvtide.tiers.mooncake.waiters import Waiters

AT_A_TIME = 4
"""In each direction: puts, for which nobody waits, do not hold up gets."""


class Transfers:
    """Called like the client. The calling thread sleeps until the bytes are there."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._puts = Waiters("kvtide-mooncake-put", AT_A_TIME)
        self._gets = Waiters("kvtide-mooncake-get", AT_A_TIME)

    def batch_put_from(self, *arguments: Any) -> Any:
        """Write values, each in one piece."""
        return self._puts.call(self._store.batch_put_from, *arguments)

    def batch_put_from_multi_buffers(self, *arguments: Any) -> Any:
        """Write values in pieces."""
        return self._puts.call(self._store.batch_put_from_multi_buffers, *arguments)

    def batch_get_into(self, *arguments: Any) -> Any:
        """Read values, each into one piece of memory."""
        return self._gets.call(self._store.batch_get_into, *arguments)

    def batch_get_into_multi_buffers(self, *arguments: Any) -> Any:
        """Read values into pieces of memory."""
        return self._gets.call(self._store.batch_get_into_multi_buffers, *arguments)

    def stop(self) -> None:
        """End the threads, when no call comes any more."""
        self._puts.stop()
        self._gets.stop()
