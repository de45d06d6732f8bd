"""ARC: what is used twice is kept from what is used once, and regrets move the border."""

from __future__ import annotations

import pytest

from kvtide.core.eviction import ARC
from tests.contracts.eviction_contract import SLOTS, Pool
from tests.core.eviction.plain import PlainARC, Twins


def pool_with_keys() -> tuple[Pool, list[bytes]]:
    keys = [b""] * SLOTS
    return Pool(ARC, names=keys), keys


def name(keys: list[bytes], chain: list[int], prefix: str) -> None:
    for index, slot in enumerate(chain):
        keys[slot] = f"{prefix}{index}".encode()


def test_what_was_used_again_outlives_what_came_later() -> None:
    pool = Pool(ARC)
    used, later = pool.add(3), pool.add(3)
    pool.use(used)
    newest = pool.add(3)
    assert pool.evict(6) == later[::-1] + newest[::-1]


def test_the_end_of_a_request_is_no_second_use() -> None:
    pool = Pool(ARC)
    first, second = pool.add(2), pool.add(2)
    pool.policy.renew(first, 4, 4)
    third = pool.add(2)
    assert pool.evict(SLOTS) == second[::-1] + first[::-1] + third[::-1]


def test_what_comes_back_after_it_was_evicted_counts_as_used_twice() -> None:
    pool, keys = pool_with_keys()
    first = pool.add(2)
    name(keys, first, "a")
    name(keys, others := pool.add(2), "b")
    assert pool.evict(2) == first[::-1]
    again = pool.add(2)
    name(keys, others, "b")
    pool.policy.evict(0)
    assert pool.evict(1) in ([others[1]], [again[1]])


def test_regrets_let_blocks_used_once_have_more_room() -> None:
    pool, keys = pool_with_keys()
    often = pool.add(4)
    name(keys, often, "often")
    pool.use(often)
    for turn in range(12):
        once = pool.free[:1]
        keys[once[0]] = b"again"
        pool.add(1)
        victims = pool.evict(1)
        assert turn > 0 or victims == once
    assert len(pool.parent) == 4


def test_memory_of_what_was_given_up_is_bounded() -> None:
    pool, keys = pool_with_keys()
    for round_ in range(20):
        name(keys, pool.free[:8], f"r{round_}-")
        chain = pool.add(8)
        if round_ % 2:
            pool.use(chain)
        pool.evict(8)
    assert isinstance(pool.policy, ARC)
    assert len(pool.policy._once_gone) + len(pool.policy._often_gone) <= SLOTS


@pytest.mark.parametrize("slots", [1, 5, 24, 40])
def test_victims_are_those_of_plain_lists(slots: int) -> None:
    assert all(Twins(ARC, PlainARC, slots).play(seed) for seed in range(12))
