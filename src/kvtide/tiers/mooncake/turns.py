"""One batch at a time in each direction: two that share the network cost the client more than they gain.

Meanwhile the other threads seal and verify. (64 KiB, two threads: gets take a third less processor time this way.)
"""

from __future__ import annotations

import threading
from typing import Any


class InTurns:
    """The client's calls that move bytes."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._putting, self._getting = threading.Lock(), threading.Lock()

    def batch_put_from(self, *arguments: Any) -> Any:
        """Write values, each in one piece."""
        with self._putting:
            return self._store.batch_put_from(*arguments)

    def batch_put_from_multi_buffers(self, *arguments: Any) -> Any:
        """Write values in pieces."""
        with self._putting:
            return self._store.batch_put_from_multi_buffers(*arguments)

    def batch_get_into(self, *arguments: Any) -> Any:
        """Read values, each into one piece of memory."""
        with self._getting:
            return self._store.batch_get_into(*arguments)

    def batch_get_into_multi_buffers(self, *arguments: Any) -> Any:
        """Read values into pieces of memory."""
        with self._getting:
            return self._store.batch_get_into_multi_buffers(*arguments)
