"""Records in memory behind a queue: the simplest tier that keeps bytes."""

from __future__ import annotations

from kvtide.tiers import HIT, MISS, Item, MemoryBackend, QueuedTier
from tests.contracts.tier_contract import KeepingContract, block, get, key, put, room


class TestMemoryBehindAQueue(KeepingContract):
    def build(self, *, calls_max: int | None = None) -> QueuedTier:
        return QueuedTier(MemoryBackend(), threads=3, calls_max=calls_max or 1024)


class TestWithOneThread(KeepingContract):
    def build(self, *, calls_max: int | None = None) -> QueuedTier:
        return QueuedTier(MemoryBackend(), threads=1, calls_max=calls_max or 1024)


def test_the_oldest_leave_when_it_is_full() -> None:
    tier = QueuedTier(MemoryBackend(bytes_max=3 * 8192), threads=1)
    put(tier, [Item(key(number), block(number)) for number in range(5)])
    assert get(tier, [Item(key(number), room()) for number in range(5)]) == (MISS, MISS, HIT, HIT, HIT)
    assert tier.stats().bytes_used == tier.stats().bytes_budget
    tier.close()
