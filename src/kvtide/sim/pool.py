"""The device pool of the simulated engine: a `DevicePool` in the simplest way, with ordered dictionaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from kvtide.core.device import BlockContent, FreeBlock
from kvtide.core.groups import NULL_BLOCK, Key
from kvtide.sim.checkers.watch import Watch


class SimPool:
    """Blocks `1..num_blocks`. What checkers see of it they hear from here and count for themselves."""

    def __init__(self, num_blocks: int, watch: Watch, *, finds_newest: bool = False) -> None:
        self.num_blocks = num_blocks
        self.on_evicted: Callable[[int, Key], None] | None = None
        """Told of each key that no block holds any more, because the last one was given to someone else."""
        self._finds_newest = finds_newest
        self._watch = watch
        self._free: dict[int, int] = {}
        """Next victim first; the value is the cursor: the number of the block's stay in the queue, and the block."""
        self._stays = 0
        self._refs = [0] * (num_blocks + 1)
        self._pins = [0] * (num_blocks + 1)
        self._content: list[BlockContent | None] = [None] * (num_blocks + 1)
        self._holders: dict[tuple[int, Key], dict[int, None]] = {}
        for block in range(1, num_blocks + 1):
            self._enqueue(block)

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated."""
        return len(self._free)

    def num_pinned(self) -> int:
        """Blocks that would be free but for pins."""
        return sum(pins > 0 and pins == refs for pins, refs in zip(self._pins, self._refs, strict=True))

    @property
    def changes(self) -> int:
        """Grows whenever a block enters the free queue."""
        return self._stays

    def next_victims(self, count: int) -> list[BlockContent]:
        """Return what the first `count` blocks of the free queue hold."""
        contents = (self._content[block] for block in itertools.islice(self._free, count))
        return [content for content in contents if content is not None]

    def is_free(self, block: int) -> bool:
        """Whether nothing refers to a block."""
        return block in self._free

    # ------------------------------------------------------------------ what the engine does

    def allocate(self, count: int) -> list[int] | None:
        """Give out blocks; None if there are too few."""
        if count > len(self._free):
            return None
        blocks = list(itertools.islice(self._free, count))
        held = []
        for block in blocks:
            del self._free[block]
            content = self._content[block]
            if content is not None:
                held.append(content)
                self._forget(block)
            self._refs[block] = 1
        if blocks:
            self._watch.allocated(blocks)
        if self.on_evicted is not None:
            for content in held:
                if (content.group, content.key) not in self._holders:
                    self.on_evicted(content.group, content.key)
        return blocks

    def take(self, blocks: Sequence[int]) -> None:
        """Refer to blocks that were found."""
        for block in blocks:
            if not self._refs[block]:
                del self._free[block]
            self._refs[block] += 1
        self._watch.taken(blocks)

    def free(self, blocks: Sequence[int]) -> None:
        """Return references, `blocks` in prefix order: the end of a prefix is evicted before its beginning."""
        held = [block for block in blocks if block != NULL_BLOCK]
        self._watch.freed(held)
        for block in reversed(held):
            self._refs[block] -= 1
            if not self._refs[block]:
                self._enqueue(block)

    def register(self, block: int, content: BlockContent) -> None:
        """Tell what a block holds, or will hold when the compute that is on its way has ended."""
        if self._content[block] is not None:
            self._forget(block)
        self._content[block] = content
        self._holders.setdefault((content.group, content.key), {})[block] = None

    def reset(self) -> None:
        """Forget what blocks hold."""
        self._content = [None] * (self.num_blocks + 1)
        self._holders.clear()

    def holds(self, group: int, keys: Sequence[Key]) -> list[bool]:
        """Say of each key whether some block has it."""
        holders = self._holders
        return [(group, key) in holders for key in keys]

    # ------------------------------------------------------------------ what kvtide does

    def find(self, group: int, key: Key) -> int | None:
        """Return a block that got this content: the first one, or the last."""
        holders = self._holders.get((group, key))
        if not holders:
            return None
        return next(reversed(holders)) if self._finds_newest else next(iter(holders))

    def pin(self, blocks: Sequence[int]) -> None:
        """Refer to blocks because of a copy."""
        for block in blocks:
            if not self._refs[block]:
                del self._free[block]
            self._refs[block] += 1
            self._pins[block] += 1
        self._watch.pinned(blocks)

    def unpin(self, blocks: Sequence[int]) -> None:
        """Return such references."""
        self._watch.unpinned(blocks)
        for block in reversed(blocks):
            self._pins[block] -= 1
            self._refs[block] -= 1
            if not self._refs[block]:
                self._enqueue(block)

    def walk_free(self, after: int | None) -> Iterator[FreeBlock] | None:
        """Iterate over the free queue."""
        if after is not None and not self._is_queued(after):
            return None
        return self._walk(list(self._free.items()), after)

    def _walk(self, queue: list[tuple[int, int]], after: int | None) -> Iterator[FreeBlock]:
        for block, cursor in queue:
            if after is None:
                yield FreeBlock(block, self._content[block], cursor)
            elif cursor == after:
                after = None

    def free_ahead(self, cursor: int) -> int:
        """Return how many free blocks there are up to the one with this cursor."""
        return 1 + list(self._free.values()).index(cursor) if self._is_queued(cursor) else 0

    def _is_queued(self, cursor: int) -> bool:
        return self._free.get(cursor % len(self._refs)) == cursor

    def _enqueue(self, block: int) -> None:
        self._stays += 1
        self._free[block] = self._stays * len(self._refs) + block

    def _forget(self, block: int) -> None:
        content = self._content[block]
        assert content is not None
        self._content[block] = None
        holders = self._holders[content.group, content.key]
        del holders[block]
        if not holders:
            del self._holders[content.group, content.key]
