"""Block tables of the simulated engine: filled, extended, shortened, emptied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from kvtide.core.device import BlockContent
from kvtide.core.groups import NULL_BLOCK, Key
from kvtide.sim.attention import Layout, State, boundaries_of, first_blocks
from kvtide.sim.checkers.watch import Watch
from kvtide.sim.pool import SimPool
from kvtide.sim.request import SimRequest


class Tables:
    """What a scheduler does with the blocks of requests."""

    def __init__(self, groups: Layout, pool: SimPool, watch: Watch) -> None:
        self._groups = groups
        self._sizes = [group.block_tokens for group in groups]
        self._boundaries = boundaries_of(groups)
        self._first_blocks = [first_blocks(group) for group in groups]
        self._windowed = [index for index, group in enumerate(groups) if group.forgets]
        self._states = [index for index, group in enumerate(groups) if isinstance(group, State)]
        self._pool = pool
        self._watch = watch
        self.filling: set[int] = set()
        """Blocks that got their keys although the step that fills them is only being scheduled."""

    def device_hit(self, request: SimRequest) -> int:
        """Return how many tokens the device still has, at most all but one."""
        if not request.keys[0]:
            return 0
        there = [self._pool.holds(group, keys) for group, keys in enumerate(request.keys)]
        return self._boundaries.longest(0, request.known - 1, there)

    def reads_what_is_being_filled(self, request: SimRequest, device_tokens: int) -> bool:
        """Whether the hits of a request have a state that the step which is being scheduled will fill.

        KV can be read in the step that writes it, layer by layer. A state cannot: it is read before it is written.
        """
        return bool(self.filling) and any(
            self._pool.find(index, request.keys[index][block]) in self.filling
            for index in self._states
            for block in range(self._first_blocks[index][device_tokens], device_tokens // self._sizes[index])
        )

    def place(self, request: SimRequest, *, device_tokens: int, resume_at: int, end: int, spare: int) -> bool:
        """Fill the empty tables of a request for `end` tokens; False, and nothing changes, if there is no room."""
        found: list[list[int]] = []
        missing = 0
        for index, size in enumerate(self._sizes):
            first, hits_end = self._first_blocks[index][resume_at], device_tokens // size
            hits = [self._pool.find(index, key) or NULL_BLOCK for key in request.keys[index][first:hits_end]]
            found.append([NULL_BLOCK] * first + hits)
            missing += -(-end // size) - len(found[-1])
        hits = [block for blocks in found for block in blocks if block != NULL_BLOCK]
        if self._pool.num_free - sum(map(self._pool.is_free, hits)) < missing + spare:
            return False
        self._pool.take(hits)
        for index, blocks in enumerate(found):
            request.tables[index] += blocks
            request.registered[index] = device_tokens // self._sizes[index]
        extended = self.extend(request, end)
        assert extended
        return True

    def missing(self, request: SimRequest, end: int) -> int:
        """Return how many blocks a request lacks to hold `end` tokens."""
        missing = 0
        for size, table in zip(self._sizes, request.tables, strict=True):
            lacking = -(-end // size) - len(table)
            if lacking > 0:
                missing += lacking
        return missing

    def extend(self, request: SimRequest, end: int) -> bool:
        """Make room for `end` tokens; False if there are too few blocks."""
        if end <= request.room_tokens:
            return True
        missing = self.missing(request, end)
        blocks = self._pool.allocate(missing)
        if blocks is None:
            return False
        for size, table in zip(self._sizes, request.tables, strict=True):
            count = max(0, -(-end // size) - len(table))
            table.extend(blocks[:count])
            del blocks[:count]
        request.room_tokens = min(size * len(table) for size, table in zip(self._sizes, request.tables, strict=True))
        return True

    def register(self, request: SimRequest, end: int, *, filling: bool = False) -> None:
        """Tell the pool which blocks of the first `end` tokens are full, as far as their keys are known."""
        for index, size in enumerate(self._sizes):
            keys, table = request.keys[index], request.tables[index]
            full = min(end // size, len(keys))
            for block in range(request.registered[index], full):
                if table[block] != NULL_BLOCK:
                    parent = keys[block - 1] if block else None
                    content = BlockContent(index, keys[block], parent, (block + 1) * size)
                    self._pool.register(table[block], content)
                    if filling:
                        self.filling.add(table[block])
            request.registered[index] = max(full, request.registered[index])

    def slide(self, request: SimRequest) -> None:
        """Free what no token to come needs."""
        for index in self._windowed:
            table = request.tables[index]
            gone = []
            for block in range(self._first_blocks[index][request.scheduled] - 1, -1, -1):
                if table[block] == NULL_BLOCK:
                    break
                self._watch.slid(request, index, block)
                gone.append(table[block])
                table[block] = NULL_BLOCK
            if gone:
                self._pool.free(gone[::-1])

    def release(self, request: SimRequest) -> list[int]:
        """Empty the tables; return the blocks that are to be freed, in prefix order."""
        held = [block for table in request.tables for block in table if block != NULL_BLOCK]
        for table in request.tables:
            table.clear()
        request.room_tokens = 0
        request.registered = [0] * len(self._groups)
        return held


class FoundTable(Sequence[int]):
    """The block table of one group as kvtide sees it: what has left the window is looked up by key.

    For stores only. A load must write to the request's own blocks, so while it is `placed` these are what is seen.
    """

    def __init__(self, request: SimRequest, group: int, pool: SimPool) -> None:
        self._request = request
        self._group = group
        self._pool = pool

    def __len__(self) -> int:
        return len(self._request.tables[self._group])

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        blocks = self._request.tables[self._group][index]
        if self._request.being_placed:
            return blocks
        keys = self._request.keys[self._group]
        if not isinstance(index, slice):
            assert isinstance(blocks, int)
            return self._found(keys[index]) if blocks == NULL_BLOCK and index < len(keys) else blocks
        assert isinstance(blocks, list)
        known = keys[index]
        return [
            self._found(known[at]) if block == NULL_BLOCK and at < len(known) else block
            for at, block in enumerate(blocks)
        ]

    def _found(self, key: Key) -> int:
        return self._pool.find(self._group, key) or NULL_BLOCK
