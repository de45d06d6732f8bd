"""Gives the server's memory back after a clear, a page at a time: nobody waits for it."""

from __future__ import annotations

import threading

from kvtide.tiers.valkey.connection import Connection
from kvtide.tiers.valkey.names import Names, RecordName

_PAGE = 1000
"""Names that the server looks at per call: well under a millisecond of its time."""


class Sweep:
    """Walks over the server's keys and removes records of other generations than the one that counts.

    A clear takes the first pages along, and each put one more, because it is puts that need room. If the walk is
    cut short for good, nothing wrong is ever read: the records are merely left to eviction or to the next clear.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._cursor: bytes | None = None
        """Where the walk goes on. None: there is nothing to do."""

    def begin(self) -> None:
        """Start over."""
        with self._lock:
            self._cursor = b"0"

    def step(self, connection: Connection, generation: bytes) -> bool:
        """Do one page. Returns whether more is left."""
        with self._lock:
            cursor, self._cursor = self._cursor, None  # two threads do not walk the same page
        if cursor is None:
            return False
        (page,) = connection.ask([(b"SCAN", cursor, b"MATCH", self._names.records(), b"COUNT", b"%d" % _PAGE)])
        if not isinstance(page, list):
            return False  # this user may not: the server's own eviction has to do
        following, found = page
        names = [name for name in map(RecordName.parse, found) if name is not None]
        if old := [name.raw for name in names if name.generation != generation]:
            connection.ask([(b"UNLINK", *old)])
        if following == b"0":
            return False
        with self._lock:
            self._cursor = following
        return True
