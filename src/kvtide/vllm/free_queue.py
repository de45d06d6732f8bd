"""vLLM's queue of free blocks, with a stamp for each stay of a block in it.

Lazy mode walks the queue step after step and has to know whether the block at which it stopped is still where it
was. vLLM's queue cannot tell: a block that left and came back looks the same. So the blocks that enter are numbered.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue


class StampedQueue(FreeKVCacheBlockQueue):  # type: ignore[misc]  # vLLM has no type information here
    """A free queue whose labels rise from the front to the end. A cursor is label * ids + block id.

    Made of a queue that is already in use by `stamp`, because the block pool holds on to it.
    """

    ids: int
    cursors: list[int]
    last_label: int
    first_label: int

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
        label = self.first_label
        for block in reversed(blocks):
            label -= 1
            self.cursors[block.block_id] = label * self.ids + block.block_id
        self.first_label = label
        super().prepend_n(blocks)

    def _stamp_last(self, blocks: Any) -> None:
        label = self.last_label
        for block in blocks:
            label += 1
            self.cursors[block.block_id] = label * self.ids + block.block_id
        self.last_label = label


def stamp(queue: Any, num_blocks: int) -> StampedQueue:
    """Turn a free queue into one that stamps, in place."""
    queue.__class__ = StampedQueue
    queue.ids = num_blocks
    queue.cursors = [-1] * num_blocks
    queue.last_label = queue.first_label = 0
    for block in queue.get_all_free_blocks():
        queue._stamp_last((block,))
    stamped: StampedQueue = queue
    return stamped
