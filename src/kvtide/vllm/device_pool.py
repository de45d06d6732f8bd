"""vLLM's block pool as a `DevicePool`: kvtide may look, pin and unpin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain
from typing import Any

from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, make_block_hash_with_group_id

from kvtide.core import BlockContent, FreeBlock, Key
from kvtide.vllm.free_queue import Place, StampedQueue, adopt, adopt_stamped
from kvtide.vllm.layout import Layout

LOG_MAX = 4_096
"""Pins and unpins are counted after this many calls at the latest."""


class VLLMDevicePool:
    """Blocks that vLLM allocates. A pin is one more reference, so vLLM's own free count sees it (F12)."""

    def __init__(self, pool: Any, layout: Layout, *, walked: bool) -> None:
        self._pool = pool
        self._blocks: list[Any] = pool.blocks
        self._group_ids = layout.group_ids
        self._group_of = {id_: index for index, id_ in enumerate(layout.group_ids)}
        self._block_tokens = [group.block_tokens for group in layout.geometry.groups]
        self._counted: Counter[int] = Counter()
        self._pins: list[Sequence[int]] = []
        """What was pinned since pins were counted."""
        self._unpins: list[Sequence[int]] = []
        self.doubted: Callable[[], Set[int]] = frozenset
        """Returns blocks that may not hold what vLLM says."""
        self._parents: dict[int, tuple[Key, Key | None]] = {}
        self._queue = adopt(pool.free_block_queue)
        self._walked = adopt_stamped(pool.free_block_queue, len(pool.blocks)) if walked else None

    def find(self, group: int, key: Key) -> int | None:
        """Return a block that holds `key`, or will hold it when this step's forward pass is over."""
        # Not kept in an attribute: a reset of the prefix cache replaces the map.
        block = self._pool.cached_block_hash_to_block.get_one_block(
            make_block_hash_with_group_id(key, self._group_ids[group])
        )
        return None if block is None or block.block_id in self.doubted() else int(block.block_id)

    def forget(self, group: int, blocks: Sequence[int], keys: Sequence[Key]) -> None:
        """Let vLLM forget that `blocks` hold `keys`, those of them that nobody else was given meanwhile."""
        group_id = self._group_ids[group]
        hashes = [make_block_hash_with_group_id(key, group_id) for key in keys]
        wrong = {id_ for id_, hashed in zip(blocks, hashes, strict=False) if self._blocks[id_].block_hash == hashed}
        if wrong:
            self._pool.evict_blocks(wrong)

    def pin(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block."""
        objects = self._blocks
        pinned = [objects[id_] for id_ in blocks]
        free = [block for block in pinned if not block.ref_cnt]
        if free:
            self._queue.keep_places(free)
        self._pins.append(blocks)
        self._pool.touch(pinned)

    def unpin(self, blocks: Sequence[int]) -> None:
        """Return references. The end of a prefix is evicted before its beginning.

        Blocks that were free when they were pinned, and that nobody has used since, come back to where they were.
        """
        objects = self._blocks
        self._unpins.append(blocks)
        if len(self._pins) + len(self._unpins) > LOG_MAX:
            self._count_pins()
        unpinned = [objects[id_] for id_ in reversed(blocks)]
        if self._queue.places:
            unpinned = self._put_back(unpinned)
        self._pool.free_blocks(unpinned)

    def _put_back(self, blocks: list[Any]) -> list[Any]:
        """Free blocks that have a place in the queue; return the rest."""
        places = self._queue.places
        rest, back = [], []
        for block in blocks:
            if block.block_id not in places:
                rest.append(block)
            elif block.ref_cnt > 1:  # pinned twice
                block.ref_cnt -= 1
            elif block.block_hash is None:  # nothing is worth keeping any more: vLLM knows where it belongs
                self._queue.forget_place(block.block_id)
                rest.append(block)
            else:
                block.ref_cnt = 0
                back.append(block)
        self._queue.put_back(back)
        return rest

    def used(self, tables: Iterable[Sequence[int]]) -> None:
        """Take note of a request's blocks: those that it hit while they were pinned have no old place any more."""
        if self._queue.places:
            for id_ in chain.from_iterable(tables):
                self._queue.forget_place(id_)

    def frees_soon(self) -> bool:
        """Whether a block is kept from being free by pins alone, so that waiting for copies makes room."""
        blocks = self._blocks
        return any(blocks[id_].ref_cnt == count for id_, count in self._count_pins().items())

    def count_pinned(self) -> int:
        """Return how many blocks have at least one pin."""
        return len(self._count_pins())

    def _count_pins(self) -> Counter[int]:
        """Return how many pins each block has. Counted only when someone asks: pinning has to be cheap."""
        counts = self._counted
        counts.update(chain.from_iterable(self._pins))
        counts.subtract(chain.from_iterable(self._unpins))
        self._pins.clear()
        self._unpins.clear()
        self._counted = +counts  # without those that are 0
        return self._counted

    # ------------------------------------------------------------------ the free queue (lazy mode)

    def remember_parents(self, blocks: Sequence[int], keys: Sequence[Key]) -> None:
        """Note which block continues which, for the blocks of a request that is about to give them up."""
        parent: Key | None = None
        for id_, key in zip(blocks, keys, strict=False):
            self._parents[id_] = key, parent
            parent = key

    def walk_free(self, after: int | None) -> Iterator[FreeBlock] | None:
        """Iterate over the free queue behind the block that had cursor `after`; None if it has left."""
        queue = self._stamped
        if after is None:
            return self._walk(queue, queue.fake_free_list_head.next_free_block)
        block = self._at(queue, after)
        return None if block is None else self._walk(queue, block.next_free_block)

    def free_ahead(self, cursor: int) -> int:
        """Return at least how many blocks are in the queue up to the one that had `cursor`; 0 if it left."""
        queue = self._stamped
        if self._at(queue, cursor) is None:
            return 0
        last: int = queue.fake_free_list_tail.prev_free_block.block_id
        behind_at_most = queue.labels[last] - queue.labels[cursor % queue.ids]
        free: int = queue.num_free_blocks
        return max(1, free - behind_at_most)

    def next_victims(self, count: int) -> list[tuple[Any, int | None]]:
        """Return what the next blocks hold that vLLM will give out: hash, and where its tokens end."""
        block, held = self._stamped.fake_free_list_head.next_free_block, []
        while count and block is not None:
            if not isinstance(block, Place):
                count -= 1
                if block.block_hash is not None:
                    held.append((block.block_hash, block.block_hash_num_tokens))
            block = block.next_free_block
        return held

    def gone(self, held: list[tuple[Any, int | None]]) -> Iterator[tuple[int, Key]]:
        """Return the groups and keys among these that no block holds any more."""
        find = self._pool.cached_block_hash_to_block.get_one_block
        for hashed, end_tokens in held:
            if find(hashed) is None:
                group = self._group_of.get(get_group_id(hashed))
                if group is not None and not (end_tokens or 0) % self._block_tokens[group]:
                    yield group, bytes(get_block_hash(hashed))

    @property
    def _stamped(self) -> StampedQueue:
        assert self._walked is not None, "only lazy mode walks the free queue"
        return self._walked

    def _at(self, queue: StampedQueue, cursor: int) -> Any:
        """Return the block that has `cursor`, if it is still in the queue."""
        block = self._blocks[cursor % queue.ids]
        return block if queue.cursors[block.block_id] == cursor and not block.ref_cnt else None

    def _walk(self, queue: StampedQueue, block: Any) -> Iterator[FreeBlock]:
        tail = queue.fake_free_list_tail
        while block is not None and block is not tail:
            behind = block.next_free_block  # read first: the caller may pin the block
            if not isinstance(block, Place):
                yield FreeBlock(block.block_id, self._content(block), queue.cursors[block.block_id])
            block = behind

    def _content(self, block: Any) -> BlockContent | None:
        """Return what a block holds, or None when it is not a whole block of a group that can be cached."""
        hashed = block.block_hash
        group = None if hashed is None else self._group_of.get(get_group_id(hashed))
        if group is None:
            return None
        block_tokens = self._block_tokens[group]
        end_tokens = block.block_hash_num_tokens or block_tokens
        if end_tokens % block_tokens:
            return None
        key = bytes(get_block_hash(hashed))
        known, parent = self._parents.get(block.block_id, (None, None))
        return BlockContent(group, key, parent if known == key else None, end_tokens)
