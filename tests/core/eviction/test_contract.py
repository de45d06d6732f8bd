"""Every policy that can be configured passes the contract."""

from __future__ import annotations

from kvtide.core import POLICIES
from kvtide.core.eviction import LRU, PrefixAware
from tests.contracts.eviction_contract import EvictionContract


class TestLRU(EvictionContract):
    policy = LRU


class TestPrefixAware(EvictionContract):
    policy = PrefixAware


def test_every_policy_is_under_contract() -> None:
    assert {suite.policy for suite in EvictionContract.__subclasses__()} == set(POLICIES.values())
