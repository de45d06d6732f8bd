"""Block tables: which device blocks a request has, in each group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

from kvtide.core.groups import NULL_BLOCK, Group, Present, longest_resumable
from kvtide.engine.block_pool import BlockPool
from kvtide.engine.request import Request


class BlockTables:
    """Fills, extends and empties the tables of requests from one pool. Tables are changed in place."""

    def __init__(self, groups: Sequence[Group], pool: BlockPool) -> None:
        self._groups = groups
        self._block_tokens = groups[0].block_tokens  # the same in all groups
        self._pool = pool

    def device_hit(self, request: Request) -> int:
        """Return how many tokens the request can find on the device. One is left to compute."""

        def present(group: int) -> Present:
            return lambda block: self._pool.find(group, request.keys[block]) is not None

        everywhere = [present(group) for group in range(len(self._groups))]
        return longest_resumable(self._groups, 0, len(request.tokens) - 1, everywhere)

    def place(self, request: Request, *, device_tokens: int, resume_at: int, num_tokens: int, spare: int) -> bool:
        """Fill empty tables, or leave them and return False if fewer than `spare` blocks would stay free.

        `device_tokens` are found on the device, the KV up to `resume_at` comes from elsewhere, and there is
        room for `num_tokens`. Groups get only what they need to resume there.
        """
        found: list[list[int]] = []
        fresh = 0
        hit_blocks, end = device_tokens // self._block_tokens, self._blocks_for(num_tokens)
        for index, group in enumerate(self._groups):
            first = group.first_needed(resume_at)
            hits = [self._pool.find(index, key) or NULL_BLOCK for key in request.keys[first:hit_blocks]]
            found.append([NULL_BLOCK] * first + hits)
            fresh += end - max(first, hit_blocks)
        hits = [block for table in found for block in table if block]
        if self._pool.num_free - sum(self._pool.refs(block) == 0 for block in hits) < fresh + spare:
            return False
        self._pool.take(hits)
        for table, blocks in zip(request.tables, found, strict=True):
            table.extend(blocks)
        request.registered = hit_blocks
        return self.extend(request, num_tokens)

    def missing(self, request: Request, num_tokens: int) -> int:
        """Return how many blocks a request lacks to hold `num_tokens` tokens."""
        end = self._blocks_for(num_tokens)
        return sum(max(0, end - len(table)) for table in request.tables)

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens; False, and nothing changes, if there are too few free blocks."""
        blocks = self._pool.allocate(self.missing(request, num_tokens))
        if blocks is None:
            return False
        end = self._blocks_for(num_tokens)
        for table in request.tables:
            count = max(0, end - len(table))
            table.extend(blocks[:count])
            del blocks[:count]
        return True

    def register(self, request: Request) -> None:
        """Tell the pool what the blocks hold that have been filled since the last call."""
        full = request.computed // self._block_tokens
        for index in range(request.registered, full):
            parent = request.keys[index - 1] if index else None
            end_tokens = (index + 1) * self._block_tokens
            for group, table in enumerate(request.tables):
                if table[index] != NULL_BLOCK:
                    self._pool.register(table[index], group, request.keys[index], parent, end_tokens)
        request.registered = full

    def slide(self, request: Request) -> None:
        """Free the blocks that no token to come will need."""
        for group, table in zip(self._groups, request.tables, strict=True):
            gone = []
            for index in range(group.first_needed(request.computed) - 1, -1, -1):
                if table[index] == NULL_BLOCK:
                    break  # all before it are gone already
                gone.append(table[index])
                table[index] = NULL_BLOCK
            self._pool.free(gone[::-1])

    def release(self, request: Request) -> None:
        """Free all blocks of a request and start again from nothing."""
        # Block by block through the groups, so that what is evicted first is the end of the prefix in all of them.
        by_position = zip_longest(*request.tables, fillvalue=NULL_BLOCK)
        self._pool.free(list(chain.from_iterable(by_position)))
        for table in request.tables:
            table.clear()
        request.computed = request.registered = request.resume_at = 0

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_tokens)
