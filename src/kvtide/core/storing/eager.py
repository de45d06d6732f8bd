"""Eager mode: blocks are stored as soon as their tokens are computed, and what is left when a request ends."""

from __future__ import annotations

from kvtide.core.chain import Chain
from kvtide.core.groups import NULL_BLOCK, FullAttention, Group, Key
from kvtide.core.index.index import Grant
from kvtide.core.reasons import NotStored
from kvtide.core.requests import Request
from kvtide.core.storing.second_use import Selection
from kvtide.core.storing.stores import Stores


class EagerPlanner:
    """Follows each running request with one cursor per group.

    While a request runs its blocks are safe on the device, so a prefix that was cut on the host (F3) is not chased
    after: that would make two requests that do not both fit evict each other step after step. The flush at the end
    looks at every block again, and finds the last block (F1), the holes, and whatever had no room before.
    """

    def __init__(self, groups: tuple[Group, ...], selection: Selection, stores: Stores) -> None:
        self._groups = groups
        self._smallest_block_tokens = min(group.block_tokens for group in groups)
        self._selection = selection
        self._stores = stores
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
            if not request.asking:
                self._store_new_blocks(request)

    def preempted(self, request: Request) -> None:
        """Store what is missing from wherever the device still has it."""
        self._flush(request, preempted=True)

    def finished(self, request: Request) -> None:
        """Store what is missing, from the request's own blocks."""
        self._flush(request, preempted=False)

    def reset(self) -> None:
        """Forget the requests that have new blocks."""
        self._ready.clear()

    def _store_new_blocks(self, request: Request) -> None:
        """Store what a request has computed. It stays ready while there is more than the pin budget allows."""
        chains = []
        for index, first in enumerate(request.considered):
            full = request.full_blocks(index, self._groups[index])
            storable = self._selection.count_storable(request, index, full)
            if first < storable:
                chains.append(self._chain(request, index, first, storable))
        considered, computed_tokens = request.considered, request.computed_tokens

        def granted(grants: list[Grant]) -> None:
            request.asking = False
            if request.considered is not considered:
                return  # it has ended, or begun again: the flush looks at all of it
            for chain, grant in zip(chains, grants, strict=True):
                gone = sum(position < grant.reached for position in grant.gone)
                self._stores.lose(NotStored.OUT_OF_WINDOW, gone)
                considered[chain.group] += grant.reached
            if request.computed_tokens == computed_tokens and not any(grant.left for grant in grants):
                self._ready.pop(request.id, None)

        request.asking = True
        self._stores.begin(chains, granted)

    def _flush(self, request: Request, *, preempted: bool) -> None:
        """Bring every computed block of a request to the host, or count why not.

        Device blocks come from the request's table, or are looked for by key when the table may be out of date.
        """
        self._ready.pop(request.id, None)
        chains, storable = [], {}
        for index, group in enumerate(self._groups):
            full = request.full_blocks(index, group)
            if request.stale:
                self._stores.lose(NotStored.RESET, full)
                continue
            self._stores.lose(NotStored.NO_KEY, request.computed_tokens // group.block_tokens - full)
            chain = self._chain(request, index, 0, full)
            if preempted:
                chain.blocks = self._stores.find(chain)
                chain.filled = False
            end = storable[index] = self._selection.count_storable(request, index, full)
            chain.blocks[end:] = [NULL_BLOCK] * (full - end)
            chains.append(chain)
        # What was considered before it was gone has been counted.
        counted = [0] * len(self._groups) if preempted else request.considered
        why = NotStored.EVICTED_FROM_DEVICE if preempted else NotStored.OUT_OF_WINDOW

        def granted(grants: list[Grant]) -> None:
            for chain, grant in zip(chains, grants, strict=True):
                first, end = counted[chain.group], storable[chain.group]
                gone = [position < end for position in grant.gone if position >= first]
                self._stores.lose(why, sum(gone))
                self._stores.lose(NotStored.NOT_ADMITTED, len(gone) - sum(gone))

        request.considered = list(request.considered)  # so that answers to come change nothing
        self._stores.begin_or_defer(chains, granted, touch=True)

    def _chain(self, request: Request, index: int, first: int, last: int) -> Chain:
        """Return blocks of a request."""
        keys = request.keys[index]
        return Chain(
            group=index,
            keys=list(keys[first:last]),
            parent=keys[first - 1] if first else None,
            end_tokens=(first + 1) * self._groups[index].block_tokens,
            blocks=list(request.blocks[index][first:last]),
            # Engines may look up by key what has left the window of a request, and its states.
            filled=isinstance(self._groups[index], FullAttention),
        )
