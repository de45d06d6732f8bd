"""The device pool: which blocks are in use, what the others still hold, and who is evicted next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from kvtide.core.device import BlockContent, FreeBlock
from kvtide.core.groups import NULL_BLOCK, Key
from kvtide.errors import ConfigError, ProtocolError

NOT_LENT = -1
"""Said of a block that was not taken out of the free queue by a pin."""


class BlockPool:
    """Reference counts, a free queue and a prefix cache over blocks `1..num_blocks` (a `DevicePool`).

    A block is in the free queue exactly when nothing refers to it. It keeps what it holds, and can be found
    and taken again, until `allocate` gives it to someone else. The queue is a ring of two flat lists around
    the null block, which is never allocated and so can be its head: every operation is O(1) per block, but for
    the few steps that it takes to find where an unpinned block belongs.

    Two kinds of reference are told apart, because only one of them ends by itself: those of requests
    (`allocate`, `take`, `free`) and pins of transfers (`pin`, `unpin`). `num_pinned` counts blocks that only
    pins keep from being free, which is what an allocator that finds too little can wait for (F12).
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError("num_blocks", num_blocks, "at least one block")
        ids = num_blocks + 1
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.num_pinned = 0
        self._refs = [0] * ids
        self._pins = [0] * ids
        self._next = [*range(1, ids), NULL_BLOCK]
        self._prev = [num_blocks, *range(ids - 1)]
        # Labels rise along the queue: they count up at its end and down at its front.
        self._label = list(range(ids))
        self._last_label, self._first_label = num_blocks, 1
        # A cursor is stay * ids + block: it names the block and is never used for another stay in the queue.
        self._ids = ids
        self._stays = 1
        self._cursor = list(range(ids, 2 * ids))
        self._was_behind = [NOT_LENT] * ids
        self._content: list[BlockContent | None] = [None] * ids
        self._index: defaultdict[int, dict[Key, int]] = defaultdict(dict)
        self._twins: dict[tuple[int, Key], dict[int, None]] = {}
        self.on_evicted: Callable[[int, Key], None] | None = None
        """Called with group and key when the last block that holds them is given to someone else."""

    # --- what the engine does ---

    def allocate(self, count: int) -> list[int] | None:
        """Give out `count` blocks, next victims first; None, an ordinary answer, when there are too few."""
        if count > self.num_free:
            return None
        after, refs, content = self._next, self._refs, self._content
        blocks: list[int] = []
        block = after[NULL_BLOCK]
        for _ in range(count):
            if content[block] is not None:
                self._forget(block)
            refs[block] = 1
            blocks.append(block)
            block = after[block]
        after[NULL_BLOCK] = block
        self._prev[block] = NULL_BLOCK
        self.num_free -= count
        return blocks

    def take(self, blocks: Sequence[int]) -> None:
        """Refer to blocks found in the cache. Null blocks are passed over."""
        after, before, refs, pins = self._next, self._prev, self._refs, self._pins
        for block in blocks:
            if block:
                count = refs[block]
                if count == 0:
                    behind, ahead = after[block], before[block]
                    after[ahead] = behind
                    before[behind] = ahead
                    self.num_free -= 1
                elif count == pins[block]:
                    self.num_pinned -= 1
                    self._was_behind[block] = NOT_LENT
                refs[block] = count + 1

    def free(self, blocks: Sequence[int]) -> None:
        """Return references of requests; `blocks` in prefix order. Null blocks are passed over.

        Blocks that nothing refers to any more join the free queue from the last to the first, so that the end
        of a prefix is evicted before its beginning. Those that hold nothing go to the front.
        """
        refs, pins, content = self._refs, self._pins, self._content
        for block in reversed(blocks):
            if block:
                count = refs[block] - 1
                if count < pins[block]:
                    raise ProtocolError(f"device block {block} was freed more often than it was taken")
                refs[block] = count
                if count == 0:
                    self._enqueue(block, in_front=content[block] is None)
                elif count == pins[block]:
                    self.num_pinned += 1

    def register(self, block: int, group: int, key: Key, parent: Key | None, end_tokens: int) -> None:
        """Tell what a block holds, once it has really been computed or loaded."""
        if self._content[block] is not None:
            self._forget(block)
        self._content[block] = BlockContent(group, key, parent, end_tokens)
        if self._index[group].setdefault(key, block) != block:
            self._twins.setdefault((group, key), {})[block] = None

    def reset(self) -> None:
        """Forget what all blocks hold. References stay."""
        self._content = [None] * self._ids
        self._index.clear()
        self._twins.clear()

    def content(self, block: int) -> BlockContent | None:
        """Return what a block holds."""
        return self._content[block]

    def refs(self, block: int) -> int:
        """Return how many references a block has, pins among them. It is free if it has none."""
        return self._refs[block]

    # --- what kvtide may do (DevicePool) ---

    def find(self, group: int, key: Key) -> int | None:
        """Return a block that holds `key`, or None."""
        return self._index[group].get(key)

    def pin(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block. A free block leaves the free queue and its count."""
        after, before, refs, pins = self._next, self._prev, self._refs, self._pins
        left = 0
        for block in blocks:
            count = refs[block]
            if count == 0:
                behind, ahead = after[block], before[block]
                after[ahead] = behind
                before[behind] = ahead
                left += 1
                self._was_behind[block] = ahead
            refs[block] = count + 1
            pins[block] += 1
        self.num_free -= left
        self.num_pinned += left

    def unpin(self, blocks: Sequence[int]) -> None:
        """Return references taken by `pin`. Blocks without any reference are free again.

        Those that were in the queue when they were pinned, and that nobody has used since, come back to where they
        were. At the end of the queue they would be kept longer than what was used after them; and lazy mode, which
        stores from the front, would go through the whole queue over and over.
        """
        refs, pins, content, was_behind = self._refs, self._pins, self._content, self._was_behind
        lent = []
        for block in reversed(blocks):
            if pins[block] == 0:
                raise ProtocolError(f"device block {block} was unpinned more often than it was pinned")
            pins[block] -= 1
            count = refs[block] - 1
            refs[block] = count
            if count == 0:
                self.num_pinned -= 1
                if was_behind[block] == NOT_LENT:
                    self._enqueue(block, in_front=content[block] is None)
                else:
                    lent.append(block)
        if lent:
            self._put_back(lent)

    def walk_free(self, after: int | None) -> Iterator[FreeBlock] | None:
        """Iterate over the free queue, next victim first, starting behind the block that had cursor `after`.

        Returns None when that block has left the queue since. Blocks may be pinned as they are yielded.
        """
        if after is None:
            return self._walk(self._next[NULL_BLOCK])
        block = self._at(after)
        return None if block is None else self._walk(self._next[block])

    def free_ahead(self, cursor: int) -> int:
        """Return at least how many blocks are in the queue up to the one that had `cursor`; 0 if it left."""
        if self._at(cursor) is None:
            return 0
        behind_at_most: int = self._label[self._prev[NULL_BLOCK]] - self._label[cursor % self._ids]
        return max(1, self.num_free - behind_at_most)

    # --- inside ---

    def _at(self, cursor: int) -> int | None:
        """Return the block that has `cursor`, if it is still in the queue."""
        block = cursor % self._ids
        return block if block and self._cursor[block] == cursor and not self._refs[block] else None

    def _walk(self, block: int) -> Iterator[FreeBlock]:
        after, refs, content, cursor = self._next, self._refs, self._content, self._cursor
        while block and refs[block] == 0:
            behind = after[block]  # read first: the caller may pin the block, which takes it out of the ring
            yield FreeBlock(block, content[block], cursor[block])
            block = behind

    def _enqueue(self, block: int, *, in_front: bool) -> None:
        """Put a block into the free queue."""
        if in_front:
            self._first_label -= 1
            self._label[block] = self._first_label
            self._link(block, NULL_BLOCK)
        else:
            self._last_label += 1
            self._label[block] = self._last_label
            self._link(block, self._prev[NULL_BLOCK])

    def _put_back(self, blocks: list[int]) -> None:
        """Put blocks back into the queue by their old labels."""
        after, label, refs, was_behind = self._next, self._label, self._refs, self._was_behind
        spot = NULL_BLOCK
        for block in sorted(blocks, key=label.__getitem__):
            # What was ahead of it is a good place to look from, or what was ahead of that if it was pinned too. If
            # it was allocated, so was nearly everything before it, and the place is near the front.
            ahead = was_behind[block]
            while was_behind[ahead] != NOT_LENT:
                ahead = was_behind[ahead]
            if ahead and refs[ahead] == 0 and label[ahead] < label[block]:
                spot = ahead
            while after[spot] and label[after[spot]] < label[block]:
                spot = after[spot]
            was_behind[block] = NOT_LENT
            self._link(block, spot)

    def _link(self, block: int, ahead: int) -> None:
        """Put a block into the ring behind another one, for a new stay."""
        after, before = self._next, self._prev
        behind = after[ahead]
        after[ahead] = before[behind] = block
        before[block], after[block] = ahead, behind
        self._stays += 1
        self._cursor[block] = self._stays * self._ids + block
        self.num_free += 1

    def _forget(self, block: int) -> None:
        """Make a block hold nothing. Another block with the same content takes its place in the cache."""
        content = self._content[block]
        assert content is not None
        self._content[block] = None
        group, key = content.group, content.key
        index, twins = self._index[group], self._twins.get((group, key))
        if twins is None:
            del index[key]
            if self.on_evicted is not None:
                self.on_evicted(group, key)
            return
        if index[key] == block:
            index[key], _ = twins.popitem()
        else:
            del twins[block]
        if not twins:
            del self._twins[group, key]
