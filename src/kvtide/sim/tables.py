"""Block tables of the simulated engine: filled, extended, shortened, emptied."""

from __future__ import annotations

from kvtide.core.device import BlockContent
from kvtide.core.groups import NULL_BLOCK
from kvtide.sim.attention import Layout, common_multiple, first_blocks, longest_resumable
from kvtide.sim.checkers.watch import Watch
from kvtide.sim.pool import SimPool
from kvtide.sim.request import SimRequest


class Tables:
    """What a scheduler does with the blocks of requests."""

    def __init__(self, groups: Layout, pool: SimPool, watch: Watch) -> None:
        self._groups = groups
        self._sizes = [group.block_tokens for group in groups]
        self._step = common_multiple(groups)
        self._first_blocks = [first_blocks(group) for group in groups]
        self._windowed = [index for index, group in enumerate(groups) if group.forgets]
        self._pool = pool
        self._watch = watch

    def device_hit(self, request: SimRequest) -> int:
        """Return how many tokens the device still has, at most all but one."""
        if not request.keys[0]:
            return 0
        keys, find = request.keys, self._pool.find

        def present(group: int, block: int) -> bool:
            return block < len(keys[group]) and find(group, keys[group][block]) is not None

        return longest_resumable(self._groups, self._step, 0, request.known - 1, present)

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

    def register(self, request: SimRequest, end: int) -> None:
        """Tell the pool which blocks of the first `end` tokens are full, as far as their keys are known."""
        for index, size in enumerate(self._sizes):
            keys, table = request.keys[index], request.tables[index]
            full = min(end // size, len(keys))
            for block in range(request.registered[index], full):
                if table[block] != NULL_BLOCK:
                    parent = keys[block - 1] if block else None
                    content = BlockContent(index, keys[block], parent, (block + 1) * size)
                    self._pool.register(table[block], content)
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
