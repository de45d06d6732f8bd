"""Records in memory: the simplest backend that keeps its promises, and what the faulty one breaks."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from kvtide.tiers.backend import Backend
from kvtide.tiers.base import HIT, MISS, Item, KeyResult, TierKey
from kvtide.tiers.record import Sealer


class MemoryBackend(Backend):
    """Keeps records in a dictionary: the oldest leave when `bytes_max` is reached. For tests, also for yours."""

    def __init__(self, *, bytes_max: int = 1 << 30) -> None:
        self.sealer = Sealer(bytes(16), where="memory")
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._records: dict[TierKey, tuple[bytes, bytearray]] = {}
        self._bytes = 0

    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        """Say which keys are there."""
        with self._lock:
            return [HIT if key in self._records else MISS for key in keys]

    def put(self, items: Sequence[Item]) -> list[KeyResult]:
        """Keep copies."""
        for key, buffer in items:
            header, body = self.sealer.seal(key, buffer)
            self._keep(key, header, bytearray(body))
        return [HIT] * len(items)

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        """Fill the buffers with verified bytes."""
        results = []
        for key, buffer in items:
            with self._lock:
                record = self._records.get(key)
            if record is None:
                results.append(MISS)
            else:
                results.append(self.sealer.open(key, record[0], memoryview(record[1]), buffer).result)
        return results

    def clear(self) -> KeyResult:
        """Forget everything."""
        with self._lock:
            self._records.clear()
            self._bytes = 0
        return HIT

    def close(self) -> None:
        """Give the memory back."""
        self.clear()

    def damage(self, key: TierKey, position: int) -> None:
        """Flip a bit of a stored body."""
        with self._lock:
            body = self._records[key][1]
            body[position % len(body)] ^= 1

    def bytes_used(self) -> int:
        """Return what is held."""
        return self._bytes

    def bytes_budget(self) -> int:
        """Return what may be held."""
        return self._bytes_max

    def _keep(self, key: TierKey, header: bytes, body: bytearray) -> None:
        with self._lock:
            self._drop(key)
            while self._records and self._bytes + len(body) > self._bytes_max:
                self._drop(next(iter(self._records)))
            if len(body) <= self._bytes_max:
                self._records[key] = header, body
                self._bytes += len(body)

    def _drop(self, key: TierKey) -> None:
        record = self._records.pop(key, None)
        if record is not None:
            self._bytes -= len(record[1])
