"""Every policy that can be configured passes the contract."""

from __future__ import annotations

from kvtide.core import POLICIES
from kvtide.core.eviction import ARC, LRU, S3FIFO, Forecast, PrefixAware
from tests.contracts.eviction_contract import EvictionContract, Pool


class TestLRU(EvictionContract):
    policy = LRU


class TestPrefixAware(EvictionContract):
    policy = PrefixAware


class TestARC(EvictionContract):
    policy = ARC


class TestS3FIFO(EvictionContract):
    policy = S3FIFO

    def test_of_two_prefixes_the_one_not_used_since_leaves_first(self, pool: Pool) -> None:
        """As far as the probation is larger than its share: below it, the main queue has its turn."""
        first, second = pool.add(8), pool.add(8)
        pool.policy.tick()
        pool.use(first)
        assert pool.evict(6) == second[:1:-1]


class TestForecast(EvictionContract):
    policy = Forecast


def test_every_policy_is_under_contract() -> None:
    assert {suite.policy for suite in EvictionContract.__subclasses__()} == set(POLICIES.values())
