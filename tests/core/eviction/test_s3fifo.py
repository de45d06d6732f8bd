"""S3-FIFO: blocks pass a probation before they take room from others."""

from __future__ import annotations

import pytest

from kvtide.core.eviction import S3FIFO
from tests.contracts.eviction_contract import SLOTS, Pool
from tests.core.eviction.plain import PlainS3FIFO, Twins


def test_a_flood_of_blocks_used_once_leaves_those_used_twice_alone() -> None:
    pool = Pool(S3FIFO)
    hot = pool.add(6)
    pool.use(hot)
    pool.add(14)
    for _ in range(30):
        pool.add(4)
        assert not set(hot) & set(pool.evict(4))


def test_the_end_of_a_request_is_no_use() -> None:
    pool = Pool(S3FIFO)
    first, second = pool.add(4), pool.add(4)
    pool.policy.renew(first, 4, 4)
    assert pool.evict(8) == first[::-1] + second[::-1]


def test_what_failed_the_probation_and_comes_back_skips_it() -> None:
    keys = [b""] * SLOTS
    pool = Pool(S3FIFO, names=keys)
    failed = pool.add(4)
    for index, slot in enumerate(failed):
        keys[slot] = b"%d" % index
    assert pool.evict(4) == failed[::-1]
    again = pool.free[:4]
    for index, slot in enumerate(again):
        keys[slot] = b"%d" % index
    pool.add(4)
    others = pool.add(4)
    for slot in others:
        keys[slot] = b"other %d" % slot
    assert pool.evict(2) == others[:1:-1]


def test_use_in_the_main_queue_gives_another_round() -> None:
    pool = Pool(S3FIFO)
    first, second = pool.add(3), pool.add(3)
    pool.use(first)
    pool.use(second)
    pool.add(4)
    pool.evict(4)  # both go to the main queue
    pool.use(first)
    assert pool.evict(3) == second[::-1]


@pytest.mark.parametrize("slots", [1, 5, 24, 40])
def test_victims_are_those_of_plain_lists(slots: int) -> None:
    assert all(Twins(S3FIFO, PlainS3FIFO, slots).play(seed) for seed in range(12))
