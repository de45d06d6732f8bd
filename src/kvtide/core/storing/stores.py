"""Stores: from the decision to store a chain to the last rank's last byte, or to another try."""

from __future__ import annotations

from collections.abc import Callable

from kvtide.core.below.below import Below
from kvtide.core.chain import Chain
from kvtide.core.config import OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.groups import FullAttention
from kvtide.core.host_pool import HostPool
from kvtide.core.ledger import Ledger, StoreEntry
from kvtide.core.metrics import Metrics
from kvtide.core.reasons import NotStored
from kvtide.core.storing.backlog import Backlog

STORE_BLOCKS_MAX = 256
"""A plan's stores are cut into transfers of at most this size, so that the first ones are visible early."""
BlockOf = Callable[[Chain, int], "int | None"]
"""Returns the device block that holds the key with this index in a chain, or None."""
ATTEMPTS_MAX = 3
"""How often the store of a block is tried before it is given up as failed."""


class Stores:
    """Starts stores within the pin budget, settles them, and keeps those that have to wait or be tried again.

    What waits is remembered by key, not by block: when its turn comes, any device block with that content will do
    (F2), and if there is none any more the block is lost and counted.
    """

    def __init__(
        self,
        config: OffloadConfig,
        device: DevicePool,
        host: HostPool,
        *,
        below: Below,
        ledger: Ledger,
        metrics: Metrics,
    ) -> None:
        groups = config.geometry.groups
        self._block_tokens = [group.block_tokens for group in groups]
        # In lazy mode the tail of a prefix is stored first, while its head is still on the device.
        self._needs_prefix = [config.mode == "eager" and isinstance(group, FullAttention) for group in groups]
        self._budget = config.pin_budget_blocks
        self._backlog_max = config.geometry.device_blocks
        self._device = device
        self._host = host
        self._below = below
        self._ledger = ledger
        self._metrics = metrics
        self.backlog = Backlog(len(groups))
        """What waits to be stored later."""
        self._planned: list[StoreEntry] = []
        self.pinned_blocks = 0
        self.stopped = False
        """Nothing is begun any more."""

    @property
    def room(self) -> int:
        """Device blocks that may still be pinned. None while copies do not end: what is begun would wait with them."""
        return 0 if self.stopped or self._ledger.overdue else self._budget - self.pinned_blocks

    def useful(self, chain: Chain) -> bool:
        """Whether the host has what a chain continues (or is about to), so that storing it makes sense."""
        needed = chain.parent if self._needs_prefix[chain.group] else None
        return needed is None or self._host.has(chain.group, needed)

    def begin(self, chain: Chain, attempt: int = 1) -> int:
        """Start to store a chain from its head; return how many blocks were started.

        Fewer than all when the pin budget (`room` is 0 then) or the host is exhausted.
        """
        started = 0
        while started < len(chain) and self.room > 0:
            size = min(len(chain) - started, self.room, STORE_BLOCKS_MAX)
            begun = self._begin_part(self._part(chain, started, started + size), attempt)
            started += begun
            if begun < size:
                break
        return started

    def _begin_part(self, chain: Chain, attempt: int) -> int:
        anchor = self._anchor(chain)
        slots = self._host.take(len(chain))
        if not slots:
            if anchor is not None:
                self._host.unpin([anchor])
            return 0
        chain = self._part(chain, 0, len(slots))
        chain.slots = slots
        chain.anchor = anchor
        self._host.assign(chain)
        self._device.pin(chain.blocks)
        self.pinned_blocks += len(slots)
        self._add_to_plan(chain, attempt)
        return len(slots)

    def _part(self, chain: Chain, first: int, last: int) -> Chain:
        if first == 0 and last == len(chain):
            return chain
        return chain.part(first, last, self._block_tokens[chain.group])

    def defer(self, chain: Chain, attempt: int = 1, *, first: bool = False) -> None:
        """Store a chain later, when the pin budget allows it, from whatever block holds its content then.

        `first`: before others of its length.
        """
        if self.stopped:
            self.lose(NotStored.STOPPED, len(chain))
            return
        if self.backlog.blocks + len(chain) > self._backlog_max:
            self.lose(NotStored.QUEUE_FULL, len(chain))
            return
        chain.filled = False  # its blocks are looked up by key when its turn comes
        self.backlog.add(chain, attempt, first=first)

    def take_over(self, chain: Chain, *, lost: bool) -> None:
        """Store what was to come from elsewhere and did not; `lost`: there was a reset meanwhile."""
        if lost:
            self.lose(NotStored.RESET, len(chain))
        else:
            self.defer(chain)

    def lose(self, why: NotStored, blocks: int) -> None:
        """Count blocks that are not stored."""
        if blocks:
            self._metrics.not_stored[why] += blocks

    def retry(self) -> None:
        """Start what was deferred, as far as the pin budget goes.

        Heads before tails: a tail is of no use, and given up, when what it continues is not on its way.
        """
        while self.backlog and self.room > 0:
            chain, attempt = self.backlog.pop()
            for run in self.runs(chain, self.find):
                self.start_or_defer(run, attempt, first=True)

    def start_or_defer(self, chain: Chain, attempt: int = 1, *, first: bool = False) -> None:
        """Start a chain that nobody will offer again: what does not fit now waits, or is counted as lost."""
        if not self.useful(chain):
            self.lose(NotStored.PREFIX_MISSING, len(chain))
            return
        started = self.begin(chain, attempt)
        if started == len(chain):
            return
        if self.room > 0:
            self.lose(NotStored.HOST_FULL, len(chain) - started)
        else:
            self.defer(self._part(chain, started, len(chain)), attempt, first=first)

    def runs(self, chain: Chain, block_of: BlockOf) -> list[Chain]:
        """Cut out of a chain what the host does not know yet, with the device blocks it can be copied from."""
        on_host = self._host.slots_of(chain.group, chain.keys)
        runs: list[Chain] = []
        run: Chain | None = None
        for index, key in enumerate(chain.keys):
            block = block_of(chain, index) if on_host[index] is None else None
            if block is None:
                run = None
                continue
            if run is None:
                run = self._part(chain, index, index)
                runs.append(run)
            run.keys.append(key)
            run.blocks.append(block)
        return runs

    def take_planned(self) -> list[StoreEntry]:
        """Return the stores that were started since the last plan; from now on reports are expected."""
        planned, self._planned = self._planned, []
        for store in planned:
            self._ledger.start(store)
        return planned

    def settle(self, store: StoreEntry) -> None:
        """Every rank has reported: make the keys visible, or free the slots and hand the job on."""
        self._device.unpin(store.blocks)
        self.pinned_blocks -= len(store.blocks)
        if store.failure is not None:
            self._metrics.stores_failed += 1
        self._host.tick()
        kept = store.failure is None and not store.abandoned
        for chain in store.chains:
            if kept:
                self._host.commit(chain)
                self._metrics.stored_blocks += len(chain)
                self._below.stored(chain)
            else:
                self._host.abandon(chain)
            if chain.anchor is not None:
                self._host.unpin([chain.anchor])
            if not kept:
                self._hand_on(chain, store)

    def reset(self) -> None:
        """Let everything that waits or is in flight come to nothing.

        What no worker has heard of never begins: the engine may be about to give up its memory.
        """
        self.lose(NotStored.RESET, self.backlog.blocks)
        self.backlog.clear()
        planned, self._planned = self._planned, []
        for store in planned:
            store.abandoned = True
            self.settle(store)

    @property
    def waiting(self) -> bool:
        """Whether a later plan will have stores to start."""
        return bool(self._planned or (self.backlog and not self._ledger.overdue))

    def _hand_on(self, chain: Chain, store: StoreEntry) -> None:
        """Let another try be made by whoever holds the same bytes then."""
        if store.abandoned:
            self.lose(NotStored.RESET, len(chain))
        elif store.attempt == ATTEMPTS_MAX:
            self.lose(NotStored.COPY_FAILED, len(chain))
        else:
            self.defer(chain, store.attempt + 1)

    def find(self, chain: Chain, index: int) -> int | None:
        """Return the device block that holds a key of a chain by now; a block that is gone is counted."""
        block = self._device.find(chain.group, chain.keys[index])
        if block is None:
            self.lose(NotStored.EVICTED_FROM_DEVICE, 1)
        return block

    def _anchor(self, chain: Chain) -> int | None:
        """Pin the parent, so that it is not evicted to make room for its own child."""
        slot = self._host.cached_slot(chain.group, chain.parent) if chain.parent is not None else None
        if slot is not None:
            self._host.pin([slot])
        return slot

    def _add_to_plan(self, chain: Chain, attempt: int) -> None:
        """Let a chain share the last transfer, if that is alike and not too long by then."""
        store = self._planned[-1] if self._planned else None
        if (
            store is None
            or (store.attempt, store.filled) != (attempt, chain.filled)
            or len(store.blocks) + len(chain) > STORE_BLOCKS_MAX
        ):
            store = StoreEntry(self._ledger.next_id(), attempt=attempt, filled=chain.filled)
            self._planned.append(store)
        store.chains.append(chain)
        store.blocks += chain.blocks
        store.slots += chain.slots
