"""Eager mode: blocks are stored as soon as their tokens are computed, and what is left when a request ends."""

from __future__ import annotations

from kvtide.core.below.below import Below
from kvtide.core.chain import Chain
from kvtide.core.device import DevicePool
from kvtide.core.groups import NULL_BLOCK, FullAttention, Group, Key
from kvtide.core.host_pool import HostPool
from kvtide.core.reasons import NotStored
from kvtide.core.requests import Request
from kvtide.core.storing.stores import BlockOf, Stores


class EagerPlanner:
    """Follows each running request with one cursor per group.

    While a request runs its blocks are safe on the device, so a prefix that was cut on the host (F3) is not chased
    after: that would make two requests that do not both fit evict each other step after step. The flush at the end
    looks at every block again, and finds the last block (F1), the holes, and whatever had no room before.
    """

    def __init__(
        self, groups: tuple[Group, ...], device: DevicePool, host: HostPool, stores: Stores, below: Below
    ) -> None:
        self._groups = groups
        self._loses_blocks = [not isinstance(group, FullAttention) for group in groups]
        self._smallest_block_tokens = min(group.block_tokens for group in groups)
        self._device = device
        self._host = host
        self._stores = stores
        self._below = below
        self._ready: dict[str, Request] = {}

    @property
    def waiting(self) -> bool:
        """Whether running requests have blocks that wait for the pin budget."""
        return bool(self._ready)

    def advanced(self, request: Request, before_tokens: int) -> None:
        """Remember a request that has a new full block."""
        size = self._smallest_block_tokens
        if request.computed_tokens // size != before_tokens // size and not request.stale:
            self._ready[request.id] = request

    def evicted(self, group: int, key: Key) -> None:
        """Do nothing: what is not stored by now has been counted, or waits in the backlog and will be."""

    def plan(self, loading_blocks: int) -> None:
        """Store new blocks, requests in the order in which they became ready, as far as the pin budget goes."""
        for request in list(self._ready.values()):
            if self._stores.room <= 0:
                return
            if all(self._store_new_blocks(request, index) for index in range(len(self._groups))):
                del self._ready[request.id]

    def preempted(self, request: Request) -> None:
        """Store what is missing from wherever the device still has it."""
        self._flush(request, self._find)

    def finished(self, request: Request) -> None:
        """Store what is missing, from the request's own blocks."""
        self._flush(request, None)

    def reset(self) -> None:
        """Forget the requests that have new blocks."""
        self._ready.clear()

    def _store_new_blocks(self, request: Request, index: int) -> bool:
        """Store what one group of a request has computed; return False when the pin budget stopped it."""
        first = request.considered[index]
        full = self._stores.count_storable(request, index, self._full_blocks(request, index))
        if first >= full:
            return True
        chain = self._chain(request, index, first, full)
        if not self._stores.useful(chain):
            return True
        reached = first + len(chain)
        for run in self._missing(request, chain, first):
            begun = self._stores.begin(run)
            if begun < len(run):
                reached = run.end_tokens // self._groups[index].block_tokens - 1 + begun
                break
        self._count_out_of_window(request, index, first, reached)
        request.considered[index] = reached
        return reached == first + len(chain) or self._stores.room > 0

    def _flush(self, request: Request, find: BlockOf | None) -> None:
        """Bring every computed block of a request to the host, or count why not.

        Device blocks come from the request's table, or from `find` when the table may be out of date.
        """
        self._ready.pop(request.id, None)
        self._host.tick()
        for index, group in enumerate(self._groups):
            full = self._full_blocks(request, index)
            chain = self._chain(request, index, 0, full)
            if request.stale:
                self._stores.lose(NotStored.RESET, len(chain))
                continue
            self._stores.lose(NotStored.NO_KEY, request.computed_tokens // group.block_tokens - full)
            slots = self._host.use_keys(index, chain.keys, chain.end_tokens)
            storable = self._stores.count_storable(request, index, full)
            first = request.considered[index] if find is None else 0
            self._stores.lose(NotStored.NOT_ADMITTED, slots[max(first, storable) :].count(None))
            if find is None:
                self._count_out_of_window(request, index, first, storable)
            self._below.rely_on(slots)
            there = slots.index(None) if None in slots else full
            if there >= storable:
                continue
            rest = chain.part(there, storable, group.block_tokens)
            rest.filled = rest.filled and find is None
            for run in self._stores.runs(rest, find) if find else self._missing(request, rest, there):
                self._stores.start_or_defer(run)

    def _full_blocks(self, request: Request, index: int) -> int:
        """Blocks of a group that are computed and have a key. Placeholder tokens have none."""
        return min(request.computed_tokens // self._groups[index].block_tokens, len(request.keys[index]))

    def _chain(self, request: Request, index: int, first: int, last: int) -> Chain:
        """Return blocks of a request, without device blocks."""
        keys = request.keys[index]
        return Chain(
            group=index,
            keys=list(keys[first:last]),
            parent=keys[first - 1] if first else None,
            end_tokens=(first + 1) * self._groups[index].block_tokens,
            # Engines may look up by key what has left the window of a request, and its states.
            filled=isinstance(self._groups[index], FullAttention),
        )

    def _missing(self, request: Request, chain: Chain, first: int) -> list[Chain]:
        """Cut out of a chain what the host does not know, with the request's own device blocks."""
        blocks = request.blocks[chain.group][first : first + len(chain)]
        if NULL_BLOCK not in blocks and self._host.has_none(chain.group, chain.keys):
            chain.blocks = list(blocks)  # the usual case: all new
            return [chain]
        return self._stores.runs(chain, lambda _, index: blocks[index] or None)

    def _find(self, chain: Chain, index: int) -> int | None:
        block = self._device.find(chain.group, chain.keys[index])
        if block is None:
            self._stores.lose(NotStored.EVICTED_FROM_DEVICE, 1)
        return block

    def _count_out_of_window(self, request: Request, index: int, first: int, last: int) -> None:
        """Count blocks that left their window before they were stored."""
        if not self._loses_blocks[index]:
            return
        blocks = request.blocks[index][first:last]
        if NULL_BLOCK in blocks:
            keys = request.keys[index][first:last]
            gone = [key for block, key in zip(blocks, keys, strict=True) if block == NULL_BLOCK]
            slots = self._host.slots_of(index, gone)
            self._stores.lose(NotStored.OUT_OF_WINDOW, slots.count(None))
            self._below.rely_on(slots)
