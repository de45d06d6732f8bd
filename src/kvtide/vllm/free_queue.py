"""vLLM's queue of free blocks, in which pinned blocks keep their places; and a stamp for each stay of a block in it.

A block that is stored while it is free leaves the queue until it is copied. vLLM would append it then, as if it had
been used, and in lazy mode that drives all others through the store; at the front it would be evicted before older
ones. So a marker stays where it was.

Lazy mode walks the queue step after step and has to know whether the block at which it stopped is still where it
was. vLLM's queue cannot tell: a block that left and came back looks the same. So the blocks that enter are numbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock


class Place(KVCacheBlock):  # type: ignore[misc]  # vLLM has no type information here
    """Marks where a block was. It is linked into the queue like a block, but is not counted or given out."""


class KeepingQueue(FreeKVCacheBlockQueue):  # type: ignore[misc]  # vLLM has no type information here
    """A free queue to which blocks can come back where they were. O(1) for each block, places that are passed included.

    Made of a queue that is already in use by `adopt`, because the block pool holds on to it.
    """

    places: dict[int, Place]

    def keep_places(self, blocks: Iterable[Any]) -> None:
        """Mark where these free blocks are. They are about to be removed."""
        for block in blocks:
            self.forget_place(block.block_id)
            place = self.places[block.block_id] = Place(block.block_id)
            behind = block.next_free_block
            place.prev_free_block, place.next_free_block = block, behind
            block.next_free_block = behind.prev_free_block = place

    def forget_place(self, block_id: int) -> None:
        """Let a block be appended when it is free again: it was used meanwhile."""
        place = self.places.pop(block_id, None)
        if place is not None:
            _unlink(place)

    def put_back(self, blocks: Iterable[Any]) -> None:
        """Put blocks to their places. What was younger and is allocated by now has passed some: they are next."""
        passed = []
        for block in blocks:
            place = self.places.pop(block.block_id)
            ahead, behind = place.prev_free_block, place.next_free_block
            if behind is None:
                passed.append(block)
                continue
            block.prev_free_block, block.next_free_block = ahead, behind
            ahead.next_free_block = behind.prev_free_block = block
            self.num_free_blocks += 1
        self.prepend_n(passed)

    def popleft(self) -> Any:
        """Give out the first block."""
        if self.places:
            self._drop_places(1)
        return super().popleft()

    def popleft_n(self, n: int) -> list[Any]:
        """Give out the first blocks."""
        if self.places:
            self._drop_places(n)
        blocks: list[Any] = super().popleft_n(n)
        return blocks

    def get_all_free_blocks(self) -> list[Any]:
        """Return all blocks, next victim first."""
        return [block for block in super().get_all_free_blocks() if not isinstance(block, Place)]

    def iter_blocks_after(self, cursor: Any) -> Iterator[Any]:
        """Iterate over the blocks behind one, for another connector beside this one."""
        return (block for block in super().iter_blocks_after(cursor) if not isinstance(block, Place))

    def _drop_places(self, count: int) -> None:
        """Take places out that are among the first `count` blocks, so that vLLM meets none."""
        block, tail = self.fake_free_list_head.next_free_block, self.fake_free_list_tail
        while count and block is not tail:
            behind = block.next_free_block
            if isinstance(block, Place):
                _unlink(block)
            else:
                count -= 1
            block = behind


class StampedQueue(KeepingQueue):
    """A free queue whose labels rise from the front to the end. A cursor is stay * ids + block id."""

    ids: int
    labels: list[int]
    cursors: list[int]
    last_label: int
    first_label: int
    stays: int

    def append(self, block: Any) -> None:
        """Put one block at the end."""
        self._stamp_last((block,))
        super().append(block)

    def append_n(self, blocks: list[Any]) -> None:
        """Put blocks at the end."""
        self._stamp_last(blocks)
        super().append_n(blocks)

    def prepend_n(self, blocks: list[Any]) -> None:
        """Put blocks at the front."""
        for block in reversed(blocks):
            self.first_label -= 1
            self._stamp(block.block_id, self.first_label)
        super().prepend_n(blocks)

    def put_back(self, blocks: Iterable[Any]) -> None:
        """Put blocks to their places, for a new stay there."""
        blocks = list(blocks)
        for block in blocks:
            self._stamp(block.block_id, self.labels[block.block_id])
        super().put_back(blocks)

    def stamp_all(self, ids: int) -> None:
        """Number the blocks that are in the queue already."""
        self.ids = ids
        self.labels, self.cursors = [-1] * ids, [-1] * ids
        self.last_label = self.first_label = self.stays = 0
        self._stamp_last(self.get_all_free_blocks())

    def _stamp_last(self, blocks: Iterable[Any]) -> None:
        labels, cursors, ids = self.labels, self.cursors, self.ids
        label, stay = self.last_label, self.stays
        for block in blocks:
            label += 1
            stay += 1
            labels[block.block_id] = label
            cursors[block.block_id] = stay * ids + block.block_id
        self.last_label, self.stays = label, stay

    def _stamp(self, block_id: int, label: int) -> None:
        self.stays += 1
        self.labels[block_id] = label
        self.cursors[block_id] = self.stays * self.ids + block_id


def adopt(queue: Any) -> KeepingQueue:
    """Turn vLLM's free queue into one that keeps places, in place. It may be one: of a connector beside this one."""
    if not isinstance(queue, KeepingQueue):
        queue.__class__ = KeepingQueue
        queue.places = {}
    keeping: KeepingQueue = queue
    return keeping


def adopt_stamped(queue: Any, ids: int) -> StampedQueue:
    """Turn vLLM's free queue into one that stamps, too."""
    if not isinstance(adopt(queue), StampedQueue):
        queue.__class__ = StampedQueue
        queue.stamp_all(ids)
    stamped: StampedQueue = queue
    return stamped


def _unlink(place: Place) -> None:
    ahead, behind = place.prev_free_block, place.next_free_block
    if behind is not None:
        ahead.next_free_block, behind.prev_free_block = behind, ahead
        place.prev_free_block = place.next_free_block = None
