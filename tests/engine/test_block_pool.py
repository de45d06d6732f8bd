from __future__ import annotations

import random

import pytest

from kvtide.core.device import BlockContent
from kvtide.core.groups import NULL_BLOCK
from kvtide.engine import BlockPool
from kvtide.errors import ConfigError, ProtocolError
from tests.engine.naive_pool import NaivePool


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def free_blocks(pool: BlockPool) -> list[int]:
    walk = pool.walk_free(None)
    assert walk is not None
    return [free.block for free in walk]


def filled(num_blocks: int) -> tuple[BlockPool, list[int]]:
    """A pool whose blocks all hold the prefix of one request, which is still there."""
    pool = BlockPool(num_blocks)
    blocks = pool.allocate(num_blocks)
    assert blocks is not None
    for index, block in enumerate(blocks):
        pool.register(block, 0, key(index), key(index - 1) if index else None, (index + 1) * 16)
    return pool, blocks


def test_block_ids_begin_behind_the_null_block() -> None:
    pool = BlockPool(3)
    assert pool.allocate(3) == [1, 2, 3]


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_blocks=0"):
        BlockPool(0)


def test_f12_too_few_free_blocks_is_an_answer_and_changes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    assert pool.allocate(3) is None
    assert pool.num_free == 2
    assert pool.allocate(2) == [3, 4]
    assert pool.allocate(0) == []


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool, blocks = filled(4)
    pool.free(blocks)
    assert free_blocks(pool) == blocks[::-1]
    pool.allocate(2)
    assert [pool.find(0, key(index)) for index in range(4)] == [blocks[0], blocks[1], None, None]


def test_blocks_that_hold_nothing_are_evicted_first() -> None:
    pool = BlockPool(3)
    first, second, third = pool.allocate(3) or []
    pool.register(first, 0, key(1), None, 16)
    pool.free([first])
    pool.free([second, third])
    assert free_blocks(pool) == [second, third, first]


def test_null_blocks_in_a_table_are_passed_over() -> None:
    pool, blocks = filled(2)
    pool.free([NULL_BLOCK, *blocks])
    pool.take([NULL_BLOCK, blocks[1]])
    assert pool.num_free == 1
    assert NULL_BLOCK not in free_blocks(pool)


def test_a_free_block_can_be_found_and_taken_until_it_is_given_away() -> None:
    pool, blocks = filled(2)
    pool.free(blocks)
    found = pool.find(0, key(0))
    assert found == blocks[0]
    pool.take([found])
    assert pool.num_free == 1
    assert pool.allocate(1) == [blocks[1]]
    assert pool.find(0, key(0)) == blocks[0]
    assert pool.find(0, key(1)) is None


def test_groups_do_not_share_keys() -> None:
    pool = BlockPool(2)
    one, two = pool.allocate(2) or []
    pool.register(one, 0, key(7), None, 16)
    pool.register(two, 1, key(7), None, 16)
    assert (pool.find(0, key(7)), pool.find(1, key(7)), pool.find(2, key(7))) == (one, two, None)


def test_a_second_block_with_the_same_content_takes_over_when_the_first_is_given_away() -> None:
    pool = BlockPool(2)
    one, two = pool.allocate(2) or []
    pool.register(one, 0, key(7), None, 16)
    pool.register(two, 0, key(7), None, 16)
    assert pool.find(0, key(7)) == one
    pool.free([one])
    assert pool.allocate(1) == [one]
    assert pool.find(0, key(7)) == two
    pool.free([two])
    pool.allocate(1)
    assert pool.find(0, key(7)) is None


def test_pinned_blocks_are_not_free_and_are_counted_apart() -> None:
    pool, blocks = filled(3)
    pool.pin(blocks)
    assert pool.num_pinned == 0  # the request still refers to them
    pool.free(blocks)
    assert (pool.num_free, pool.num_pinned) == (0, 3)
    assert pool.allocate(1) is None
    pool.take(blocks[:1])
    assert pool.num_pinned == 2
    pool.unpin(blocks)
    assert (pool.num_free, pool.num_pinned) == (2, 0)
    assert free_blocks(pool) == [blocks[2], blocks[1]]


def test_blocks_that_were_pinned_while_they_were_free_come_back_to_where_they_were() -> None:
    pool, blocks = filled(6)
    pool.free(blocks)
    order = free_blocks(pool)
    pool.pin([blocks[1], blocks[3], blocks[4]])
    assert pool.allocate(1) == [order[0]]
    pool.unpin([blocks[1], blocks[3], blocks[4]])
    assert free_blocks(pool) == order[1:]


def test_blocks_that_a_request_used_while_they_were_pinned_are_evicted_last() -> None:
    pool, blocks = filled(5)
    pool.free(blocks)
    order = free_blocks(pool)
    pool.pin(blocks[3:])
    pool.take(blocks[3:])
    pool.free(blocks[3:])
    pool.unpin(blocks[3:])
    assert free_blocks(pool) == [*order[2:], *order[:2]]


def test_pins_and_references_that_were_not_taken_cannot_be_returned() -> None:
    pool, blocks = filled(1)
    with pytest.raises(ProtocolError, match="unpinned more often"):
        pool.unpin(blocks)
    pool.pin(blocks)
    pool.free(blocks)
    with pytest.raises(ProtocolError, match="freed more often"):
        pool.free(blocks)


def test_a_walk_goes_on_behind_a_cursor() -> None:
    pool, blocks = filled(5)
    pool.free(blocks)
    walk = pool.walk_free(None)
    assert walk is not None
    seen = [next(walk), next(walk)]
    again = pool.walk_free(seen[-1].cursor)
    assert again is not None
    assert [free.block for free in again] == blocks[2::-1]
    assert seen[0].content == BlockContent(0, key(4), key(3), 80)


def test_a_cursor_is_void_when_its_block_has_left_even_if_it_came_back() -> None:
    pool, blocks = filled(2)
    pool.free(blocks)
    walk = pool.walk_free(None)
    assert walk is not None
    cursor = next(walk).cursor
    pool.pin([blocks[1]])
    assert pool.walk_free(cursor) is None
    assert pool.free_ahead(cursor) == 0
    pool.unpin([blocks[1]])
    assert pool.walk_free(cursor) is None
    assert pool.free_ahead(cursor) == 0


def test_blocks_can_be_pinned_while_they_are_walked_over() -> None:
    pool, blocks = filled(4)
    pool.free(blocks)
    for free in pool.walk_free(None) or ():
        pool.pin([free.block])
    assert (pool.num_free, pool.num_pinned) == (0, 4)


def test_free_ahead_is_exact_while_blocks_only_leave_from_the_front() -> None:
    pool, blocks = filled(6)
    pool.free(blocks)
    walk = pool.walk_free(None)
    assert walk is not None
    cursor = list(walk)[4].cursor
    assert pool.free_ahead(cursor) == 5
    taken = pool.allocate(2)
    assert taken is not None
    assert pool.free_ahead(cursor) == 3
    pool.free(taken)  # empty now, so in front
    assert pool.free_ahead(cursor) == 5
    pool.allocate(2)
    assert pool.free_ahead(cursor) == 3


def test_reset_forgets_all_content_and_no_reference() -> None:
    pool, blocks = filled(3)
    pool.free(blocks[:1])
    pool.reset()
    assert pool.find(0, key(0)) is None
    assert pool.content(blocks[2]) is None
    assert pool.refs(blocks[2]) == 1
    assert pool.num_free == 1


class Comparison:
    """Does the same random things to a pool and to a naive one, and compares all that can be seen."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.num_blocks = self.rng.randrange(1, 14)
        self.pool = BlockPool(self.num_blocks)
        self.naive = NaivePool(self.num_blocks)
        self.cursors: list[int] = []

    def choose(self, counts: dict[int, int]) -> list[int]:
        return [block for block, count in counts.items() if count and self.rng.random() < 0.5]

    def some_blocks(self) -> list[int]:
        return [block for block in range(1, self.num_blocks + 1) if self.rng.random() < 0.25]

    def step(self) -> None:
        self.rng.choice([self.allocate, self.take, self.free, self.pin, self.unpin, self.register])()
        self.compare()

    def allocate(self) -> None:
        count = self.rng.randrange(self.num_blocks + 2)
        assert self.pool.allocate(count) == self.naive.allocate(count)

    def take(self) -> None:
        blocks = self.some_blocks()
        self.pool.take(blocks)
        for block in blocks:
            self.naive.take(block)

    def free(self) -> None:
        blocks = self.choose(self.naive.taken)
        self.pool.free(blocks)
        self.naive.free(blocks)

    def pin(self) -> None:
        blocks = self.some_blocks()
        self.pool.pin(blocks)
        for block in blocks:
            self.naive.pin(block)

    def unpin(self) -> None:
        blocks = self.choose(self.naive.pinned)
        self.pool.unpin(blocks)
        self.naive.unpin(blocks)

    def register(self) -> None:
        for block in self.some_blocks():
            if self.naive.taken[block]:
                content = BlockContent(self.rng.randrange(2), key(self.rng.randrange(6)), None, 16)
                self.pool.register(block, *content)
                self.naive.content[block] = content

    def compare(self) -> None:
        pool, naive = self.pool, self.naive
        walk = list(pool.walk_free(None) or ())
        assert [free.block for free in walk] == naive.queue
        assert [free.content for free in walk] == [naive.content.get(block) for block in naive.queue]
        assert (pool.num_free, pool.num_pinned) == (len(naive.queue), naive.num_pinned)
        for block in range(1, self.num_blocks + 1):
            assert pool.refs(block) == naive.taken[block] + naive.pinned[block]
        for group in range(2):
            for number in range(6):
                holders = naive.holders(group, key(number))
                found = pool.find(group, key(number))
                assert found in holders if holders else found is None
        for position, free in enumerate(walk):
            behind = pool.walk_free(free.cursor)
            assert behind is not None
            assert [later.block for later in behind] == naive.queue[position + 1 :]
            assert 1 <= pool.free_ahead(free.cursor) <= position + 1
        self.compare_old_cursors({free.cursor for free in walk})

    def compare_old_cursors(self, now: set[int]) -> None:
        for cursor in self.cursors:
            assert (self.pool.walk_free(cursor) is not None) == (cursor in now)
            assert (self.pool.free_ahead(cursor) > 0) == (cursor in now)
        self.cursors += sorted(now)[:1]


@pytest.mark.parametrize("seed", range(40))
def test_the_pool_does_what_a_naive_one_does(seed: int) -> None:
    comparison = Comparison(seed)
    for _ in range(120):
        comparison.step()
