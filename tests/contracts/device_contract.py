"""What kvtide expects of an engine's device pool (`kvtide.core.device`).

Subclass `DevicePoolContract` and say, in a `Bench`, how blocks are allocated, filled and freed in your engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from kvtide.core import NULL_BLOCK, BlockContent, DevicePool, FreeBlock

BLOCKS = 8


class Bench(ABC):
    """A device pool and what its engine does to it."""

    pool: DevicePool

    @abstractmethod
    def allocate(self, count: int) -> list[int] | None:
        """Give blocks to a request, next victims first; None when there are too few."""

    @abstractmethod
    def hold(self, block: int, content: BlockContent) -> None:
        """Let an allocated block hold something."""

    @abstractmethod
    def free(self, blocks: Sequence[int]) -> None:
        """Let a request give its blocks back."""

    @abstractmethod
    def num_free(self) -> int:
        """Return how many blocks the allocator could give out now."""


def key(number: int) -> bytes:
    return f"key {number}".encode()


def content(number: int, group: int = 0) -> BlockContent:
    """A block of a prefix of its own."""
    return BlockContent(group, key(number), None, 4)


def walk(pool: DevicePool, after: int | None = None) -> list[FreeBlock]:
    free = pool.walk_free(after)
    assert free is not None
    return list(free)


class DevicePoolContract:
    """One suite for every device pool."""

    def make(self, num_blocks: int) -> Bench:
        """Return a pool of `num_blocks` blocks that hold nothing and are all free."""
        raise NotImplementedError

    @pytest.fixture
    def bench(self) -> Bench:
        return self.make(BLOCKS)

    def filled(self, bench: Bench, count: int, start: int = 0) -> list[int]:
        """Allocate blocks that hold the contents `start`, `start + 1`, ..."""
        blocks = bench.allocate(count)
        assert blocks is not None
        for number, block in enumerate(blocks, start):
            bench.hold(block, content(number))
        return blocks

    # ------------------------------------------------------------------ find

    def test_the_null_block_is_never_given_out(self, bench: Bench) -> None:
        blocks = bench.allocate(BLOCKS)
        assert blocks is not None
        assert NULL_BLOCK not in blocks
        assert len(set(blocks)) == BLOCKS

    def test_what_nobody_holds_is_not_found(self, bench: Bench) -> None:
        assert bench.pool.find(0, key(1)) is None

    def test_a_block_in_use_is_found(self, bench: Bench) -> None:
        (block,) = self.filled(bench, 1)
        assert bench.pool.find(0, key(0)) == block

    def test_one_key_in_two_groups_is_two_things(self, bench: Bench) -> None:
        blocks = bench.allocate(2)
        assert blocks is not None
        bench.hold(blocks[0], content(7, group=0))
        bench.hold(blocks[1], content(7, group=1))
        assert [bench.pool.find(group, key(7)) for group in range(3)] == [*blocks, None]

    def test_a_free_block_is_found_until_it_is_given_to_someone_else(self, bench: Bench) -> None:
        (block,) = self.filled(bench, 1)
        bench.free([block])
        assert bench.pool.find(0, key(0)) == block
        assert bench.allocate(BLOCKS) is not None
        assert bench.pool.find(0, key(0)) is None

    def test_another_block_with_the_same_content_takes_over(self, bench: Bench) -> None:
        blocks = bench.allocate(2)
        assert blocks is not None
        for block in blocks:
            bench.hold(block, content(1))
        found = bench.pool.find(0, key(1))
        assert found in blocks
        bench.free([block for block in blocks if block == found])
        others = bench.allocate(BLOCKS - 1)
        assert others is not None
        assert found in others
        (left,) = [block for block in blocks if block != found]
        assert bench.pool.find(0, key(1)) == left

    # ------------------------------------------------------------------ pin, unpin

    def test_a_pinned_free_block_leaves_the_queue_and_the_count(self, bench: Bench) -> None:
        (block,) = self.filled(bench, 1)
        bench.free([block])
        bench.pool.pin([block])
        assert bench.num_free() == BLOCKS - 1
        assert block not in [free.block for free in walk(bench.pool)]
        assert bench.allocate(BLOCKS) is None
        blocks = bench.allocate(BLOCKS - 1)
        assert blocks is not None
        assert block not in blocks

    def test_an_unpinned_block_is_free_again_and_holds_what_it_held(self, bench: Bench) -> None:
        (block,) = self.filled(bench, 1)
        bench.free([block])
        bench.pool.pin([block])
        bench.pool.unpin([block])
        assert bench.num_free() == BLOCKS
        assert bench.pool.find(0, key(0)) == block
        assert (block, content(0)) in [(free.block, free.content) for free in walk(bench.pool)]

    def test_a_block_freed_while_it_is_pinned_is_free_after_the_unpin(self, bench: Bench) -> None:
        (block,) = self.filled(bench, 1)
        bench.pool.pin([block])
        bench.free([block])
        assert bench.num_free() == BLOCKS - 1
        bench.pool.unpin([block])
        assert bench.num_free() == BLOCKS

    def test_a_block_unpinned_while_it_is_in_use_stays_in_use(self, bench: Bench) -> None:
        (block,) = self.filled(bench, 1)
        bench.pool.pin([block])
        bench.pool.unpin([block])
        assert bench.num_free() == BLOCKS - 1
        assert block not in [free.block for free in walk(bench.pool)]
        bench.free([block])
        assert bench.num_free() == BLOCKS

    def test_pins_are_counted(self, bench: Bench) -> None:
        (block,) = self.filled(bench, 1)
        bench.free([block])
        bench.pool.pin([block])
        bench.pool.pin([block])
        bench.pool.unpin([block])
        assert bench.num_free() == BLOCKS - 1
        bench.pool.unpin([block])
        assert bench.num_free() == BLOCKS

    def test_a_block_may_be_pinned_twice_in_one_call(self, bench: Bench) -> None:
        (block,) = self.filled(bench, 1)
        bench.free([block])
        bench.pool.pin([block, block])
        bench.pool.unpin([block, block])
        assert bench.num_free() == BLOCKS
        assert [free.block for free in walk(bench.pool)].count(block) == 1

    # ------------------------------------------------------------------ the free queue

    def test_the_walk_shows_every_free_block_once(self, bench: Bench) -> None:
        used = self.filled(bench, 3)
        walked = [free.block for free in walk(bench.pool)]
        assert len(walked) == len(set(walked)) == bench.num_free() == BLOCKS - 3
        assert not set(walked) & set(used)

    def test_the_walk_goes_in_the_order_of_allocation(self, bench: Bench) -> None:
        bench.free(self.filled(bench, 5))
        order = [free.block for free in walk(bench.pool)]
        assert [bench.allocate(1) for _ in order] == [[block] for block in order]

    def test_the_walk_tells_what_blocks_hold(self, bench: Bench) -> None:
        blocks = self.filled(bench, 2)
        bench.free(blocks)
        holding = {free.block: free.content for free in walk(bench.pool)}
        assert [holding[block] for block in blocks] == [content(0), content(1)]
        assert [what for block, what in holding.items() if block not in blocks] == [None] * (BLOCKS - 2)

    def test_the_walk_goes_on_behind_a_cursor(self, bench: Bench) -> None:
        bench.free(self.filled(bench, 5))
        whole = walk(bench.pool)
        for index, free in enumerate(whole):
            assert walk(bench.pool, free.cursor) == whole[index + 1 :]

    def test_cursors_are_all_different(self, bench: Bench) -> None:
        bench.free(self.filled(bench, 5))
        cursors = [free.cursor for free in walk(bench.pool)]
        assert len(set(cursors)) == BLOCKS

    def test_blocks_may_be_pinned_during_the_walk(self, bench: Bench) -> None:
        bench.free(self.filled(bench, BLOCKS))
        order = [free.block for free in walk(bench.pool)]
        seen = []
        for free in bench.pool.walk_free(None) or ():
            bench.pool.pin([free.block])
            seen.append(free.block)
        assert seen == order
        assert bench.num_free() == 0

    def test_a_cursor_ends_with_the_stay_of_its_block(self, bench: Bench) -> None:
        bench.free(self.filled(bench, 3))
        last = walk(bench.pool)[-1]
        bench.pool.pin([last.block])
        assert bench.pool.walk_free(last.cursor) is None
        assert bench.pool.free_ahead(last.cursor) == 0

    def test_a_cursor_does_not_come_back_with_its_block(self, bench: Bench) -> None:
        bench.free(self.filled(bench, 3))
        last = walk(bench.pool)[-1]
        bench.pool.pin([last.block])
        bench.pool.unpin([last.block])
        assert last.block in [free.block for free in walk(bench.pool)]
        assert bench.pool.walk_free(last.cursor) is None
        assert bench.pool.free_ahead(last.cursor) == 0

    def test_a_cursor_ends_when_its_block_is_allocated_and_freed_again(self, bench: Bench) -> None:
        first = walk(bench.pool)[0]
        blocks = bench.allocate(1)
        assert blocks == [first.block]
        assert bench.pool.walk_free(first.cursor) is None
        bench.free(blocks)
        assert bench.pool.walk_free(first.cursor) is None

    def test_a_cursor_survives_what_happens_to_other_blocks(self, bench: Bench) -> None:
        bench.free(self.filled(bench, BLOCKS))
        whole = walk(bench.pool)
        bench.pool.pin([whole[0].block, whole[5].block])
        bench.pool.unpin([whole[0].block])
        behind = [free.block for free in walk(bench.pool, whole[3].cursor)]
        assert [block for block in behind if block != whole[0].block] == [
            whole[4].block,
            whole[6].block,
            whole[7].block,
        ]

    # ------------------------------------------------------------------ free_ahead

    def test_free_ahead_counts_a_queue_that_nobody_has_left(self, bench: Bench) -> None:
        assert [bench.pool.free_ahead(free.cursor) for free in walk(bench.pool)] == list(range(1, BLOCKS + 1))

    @settings(suppress_health_check=[HealthCheck.differing_executors])  # that is what a contract is
    @given(data=st.data())
    def test_whatever_happens_the_queue_and_its_cursors_are_right(self, data: st.DataObject) -> None:
        Play(self.make(BLOCKS)).run(data)


class Play:
    """Random engine and kvtide calls, with a plain model of references."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.used: list[int] = []
        self.pinned: list[int] = []
        self.cursors: dict[int, tuple[int, int]] = {}
        """Every cursor ever seen, with its block and the number of times that the block had left the queue."""
        self.left = dict.fromkeys(range(1, BLOCKS + 1), 0)
        self.number = 0

    def run(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(1, 25))):
            before = self.queue()
            action = data.draw(st.sampled_from([self.allocate, self.fill, self.free, self.pin, self.unpin]))
            action(data)
            for block in before - self.queue():
                self.left[block] += 1
            self.check()

    def queue(self) -> set[int]:
        return set(self.left) - set(self.used) - set(self.pinned)

    def some(self, data: Any, blocks: Sequence[int]) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(set(blocks))), unique=True)) if blocks else []

    def allocate(self, data: Any, *, full: bool = False) -> None:
        count = data.draw(st.integers(1, BLOCKS))
        blocks = self.bench.allocate(count)
        assert (blocks is None) == (count > len(self.queue()))
        self.used += blocks or []
        for block in (blocks or []) if full else []:
            self.number += 1
            self.bench.hold(block, content(self.number % 5))

    def fill(self, data: Any) -> None:
        self.allocate(data, full=True)

    def free(self, data: Any) -> None:
        blocks = self.some(data, self.used)
        self.bench.free(blocks)
        for block in blocks:
            self.used.remove(block)

    def pin(self, data: Any) -> None:
        blocks = self.some(data, list(self.left))
        self.bench.pool.pin(blocks)
        self.pinned += blocks

    def unpin(self, data: Any) -> None:
        blocks = self.some(data, self.pinned)
        self.bench.pool.unpin(blocks)
        for block in blocks:
            self.pinned.remove(block)

    def check(self) -> None:
        pool = self.bench.pool
        whole = walk(pool)
        position = {free.block: index for index, free in enumerate(whole)}
        assert len(whole) == len(position) == self.bench.num_free()
        assert set(position) == self.queue()
        for free in whole:
            stay = (free.block, self.left[free.block])
            assert self.cursors.setdefault(free.cursor, stay) == stay, "a cursor stands for two stays"
        for cursor, (block, left) in self.cursors.items():
            if block not in position or self.left[block] != left:
                assert pool.walk_free(cursor) is None
                assert pool.free_ahead(cursor) == 0
            else:
                assert walk(pool, cursor) == whole[position[block] + 1 :]
                assert 1 <= pool.free_ahead(cursor) <= position[block] + 1
