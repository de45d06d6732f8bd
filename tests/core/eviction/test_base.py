"""What policies have in common."""

from __future__ import annotations

import pytest

from kvtide.core.eviction import LRU, EvictionPolicy, Forecast, PrefixAware
from tests.contracts.eviction_contract import SLOTS, Pool


@pytest.mark.parametrize("policy", [PrefixAware, Forecast])
def test_a_policy_that_knows_parents_knows_the_prefix_of_a_slot(policy: type[EvictionPolicy]) -> None:
    pool = Pool(policy)
    head = pool.add(3)
    chain = head + pool.add(2, parent=head[-1])
    for slot in chain:
        depth = chain.index(slot) + 1
        for count in range(1, depth + 1):
            assert pool.policy.ancestors(slot, count) == chain[depth - count : depth]
        assert pool.policy.ancestors(slot, depth + 1) is None


@pytest.mark.parametrize("policy", [PrefixAware, Forecast])
def test_nothing_is_known_before_the_beginning_of_a_prefix_that_has_all_slots(policy: type[EvictionPolicy]) -> None:
    pool = Pool(policy)
    chain = pool.add(SLOTS)
    assert pool.policy.ancestors(chain[-1], SLOTS) == chain
    for more in (1, 2, 3):
        assert pool.policy.ancestors(chain[-1], SLOTS + more) is None


@pytest.mark.parametrize("policy", [PrefixAware, Forecast])
def test_the_prefix_of_an_orphan_is_known_when_it_is_adopted(policy: type[EvictionPolicy]) -> None:
    pool = Pool(policy)
    orphan = pool.add(2, depth=2)
    assert pool.policy.ancestors(orphan[-1], 3) is None
    parent = pool.add(2)
    pool.adopt(orphan[0], parent[-1])
    assert pool.policy.ancestors(orphan[-1], 4) == parent + orphan


def test_a_policy_that_knows_no_parents_knows_no_prefix() -> None:
    pool = Pool(LRU)
    chain = pool.add(3)
    assert pool.policy.ancestors(chain[-1], 2) is None


@pytest.mark.parametrize("policy", [LRU, PrefixAware])
def test_the_end_of_a_request_is_a_use_unless_a_policy_says_otherwise(policy: type[EvictionPolicy]) -> None:
    pool = Pool(policy)
    first, second = pool.add(3), pool.add(3)
    pool.policy.tick()
    pool.policy.renew(first, 4, 4)
    assert pool.evict(SLOTS) == second[::-1] + first[::-1]
