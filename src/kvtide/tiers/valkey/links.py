"""The connections of one tier: as many as it has threads, opened when they are needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvtide.tiers.valkey.link import Link
from kvtide.tiers.valkey.options import Access


class Links:
    """Lends each caller a connection of its own. The one used last goes out first: idle ones stay idle."""

    def __init__(self, access: Access, silence_s: float) -> None:
        self._access = access
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._idle: list[Link] = []

    @contextmanager
    def one(self) -> Iterator[Link]:
        """Lend a connection. Callers are threads of one bounded pool, so the number of connections is bounded too."""
        with self._lock:
            link = self._idle.pop() if self._idle else None
        link = link or Link(self._access, self._silence_s)
        try:
            yield link
        finally:
            with self._lock:
                self._idle.append(link)

    def close(self) -> None:
        """Close all connections. Nobody has one any more."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()
