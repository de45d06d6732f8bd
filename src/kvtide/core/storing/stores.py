"""Stores: from the wish to store a chain to the last rank's last byte, or to another try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from kvtide.core.chain import Chain
from kvtide.core.config import OffloadConfig
from kvtide.core.device import DevicePool
from kvtide.core.groups import NULL_BLOCK, FullAttention
from kvtide.core.index.index import RUN_BLOCKS_MAX, Grant, Granted, Index, Want
from kvtide.core.ledger import Ledger, StoreEntry
from kvtide.core.metrics import Metrics
from kvtide.core.reasons import NotStored
from kvtide.core.storing.backlog import Backlog
from kvtide.core.storing.making_way import MakingWay

ATTEMPTS_MAX = 3
"""How often the store of a block is tried before it is given up as failed."""


class Stores:
    """Starts stores within the pin budget, settles them, and keeps those that have to wait or be tried again.

    What waits is remembered by key, not by block: when its turn comes, any device block with that content will do
    (F2), and if there is none any more the block is lost and counted.
    """

    def __init__(
        self, config: OffloadConfig, device: DevicePool, index: Index, *, ledger: Ledger, metrics: Metrics
    ) -> None:
        groups = config.geometry.groups
        # In lazy mode the tail of a prefix is stored first, while its head is still on the device.
        self._block_tokens = [group.block_tokens for group in groups]
        self._needs_prefix = [config.mode == "eager" and isinstance(group, FullAttention) for group in groups]
        self._budget = config.pin_budget_blocks
        self._backlog_max = config.geometry.device_blocks
        self._device = device
        self._index = index
        self._ledger = ledger
        self._metrics = metrics
        self.backlog = Backlog(len(groups))
        """What waits to be stored later."""
        self._planned: list[StoreEntry] = []
        self.pinned_blocks = 0
        self._asks = self._asked_blocks = 0
        """What the index has not answered, and how many blocks it may grant."""
        self._held: dict[int, list[int]] = {}
        """Device blocks of what the index was asked for in the last plan, by the number of the question: pinned."""
        self._last_ask = 0
        self.stopped = False
        """Nothing is begun any more."""
        self.way = MakingWay()

    @property
    def held_up(self) -> bool:
        """Whether nothing is begun: for ever, or while copies do not end, or while stores make way."""
        return self.stopped or self.way.is_on or bool(self._ledger.overdue)

    @property
    def room(self) -> int:
        """Device blocks that may still be pinned."""
        return 0 if self.held_up else self._budget - self.pinned_blocks - self._asked_blocks

    def begin(
        self, chains: Sequence[Chain], then: Granted, *, attempt: int = 1, touch: bool = False, hold: bool = False
    ) -> None:
        """Start to store what the host lacks of chains, each from its head, as far as there is room.

        `touch`: they were in use until now. `hold`: their blocks are about to be given to somebody else, and there is
        room for all of them. `then` is told what became of them, maybe in a later step.
        """
        room = self.room
        asked = min(room, sum(map(len, chains)))  # so many may be granted, and are pinned then
        self._last_ask = ask = self._last_ask + 1
        at_once, answered = True, False

        def granted(grants: list[Grant]) -> None:
            nonlocal answered
            answered = True
            self._asks -= 1
            self._asked_blocks -= asked
            held = self._held.get(ask)
            for run in [run for grant in grants for run in grant.runs]:
                still_there = run if at_once or held is not None else self._find_again(run, attempt)
                if still_there is not None:
                    self._device.pin(still_there.blocks)
                    self.pinned_blocks += len(still_there)
                    self._add_to_plan(still_there, attempt)
            if held is not None:
                del self._held[ask]
                self._device.unpin(held)
            then(grants)

        self._asks += 1
        self._asked_blocks += asked
        self._index.reserve([Want(chain, self._needs_prefix[chain.group], touch) for chain in chains], room, granted)
        at_once = False
        if hold and not answered:
            self._held[ask] = held = [block for chain in chains for block in chain.blocks]
            self._device.pin(held)

    def let_go(self) -> None:
        """Return the blocks for which the index has not answered since the last plan: nobody waits for it (I13)."""
        for held in self._held.values():
            self._device.unpin(held)
        self._held.clear()

    @property
    def pins(self) -> int:
        """Device blocks that are kept from being reused."""
        return self.pinned_blocks + sum(map(len, self._held.values()))

    def begin_or_defer(
        self, chains: Sequence[Chain], then: Granted, *, attempt: int = 1, touch: bool = False, first: bool = False
    ) -> None:
        """Start to store what nobody will offer again: what does not fit now waits, or is counted as lost."""

        def granted(grants: list[Grant]) -> None:
            for grant in grants:
                for why, blocks in grant.refused.items():
                    self.lose(why, blocks)
                for left in grant.left:
                    self.defer(left, attempt, first=first)
            then(grants)

        self.begin(chains, granted, attempt=attempt, touch=touch)

    def _find_again(self, run: Chain, attempt: int) -> Chain | None:
        """Return a run that was asked for in an earlier step as far as the device has it; ask for the rest again."""
        run.blocks = blocks = self.find(run)
        run.filled = False  # a block may have had other content since, and be filled again by this step
        there = blocks.index(NULL_BLOCK) if NULL_BLOCK in blocks else len(blocks)
        if there == 0:
            self._index.settle([run], kept=False)
            self.defer(run, attempt)
            return None
        if there < len(run):
            self.defer(self._index.cut(run, there), attempt)
        return run

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

        Heads before tails: a tail is of no use, and given up, when what it continues is not on its way. And no further
        than there are slots: what is left when they are all taken may have some in a later step.
        """
        waiting = self.backlog.blocks + 1
        while self.backlog and self.room > 0 and self.backlog.blocks < waiting:
            waiting = self.backlog.blocks
            chain, attempt = self.backlog.pop()
            chain.blocks = self.find(chain)
            self.begin_or_defer([chain], self._count_evicted, attempt=attempt, first=True)

    def _count_evicted(self, grants: list[Grant]) -> None:
        self.lose(NotStored.EVICTED_FROM_DEVICE, sum(len(grant.gone) for grant in grants))

    def take_planned(self) -> list[StoreEntry]:
        """Return the stores that were started since the last plan; from now on reports are expected."""
        planned: list[StoreEntry] = []
        for store in self._planned:
            if any(map(self._index.is_over, store.chains)):
                self.settle(store)
            else:
                self._ledger.start(store)
                planned.append(store)
        self._planned = []
        return planned

    def settle(self, store: StoreEntry) -> None:
        """Every rank has reported: make the keys visible, or free the slots and hand the job on."""
        self._device.unpin(store.blocks)
        self.pinned_blocks -= len(store.blocks)
        if store.failure is not None:
            self._metrics.stores_failed += 1
        kept = store.failure is None and not store.abandoned
        if kept and store.not_kept:
            self._give_up_not_kept(store)
        heard = self._index.settle(store.chains, kept=kept)
        if kept:
            if heard:
                self._metrics.stored_blocks += sum(map(len, store.chains))
            else:
                self.lose(NotStored.NODE_AWAY, sum(map(len, store.chains)))
            return
        for chain in store.chains:
            self._hand_on(chain, store)

    def _give_up_not_kept(self, store: StoreEntry) -> None:
        """Abandon the blocks that some rank had no place for. Another try would end in the same way: they are lost."""
        parts = [part for chain in store.chains for part in self._cut(chain, store.not_kept)]
        lost = [part for part in parts if not store.not_kept.isdisjoint(part.slots)]
        store.chains = [part for part in parts if store.not_kept.isdisjoint(part.slots)]
        self._index.settle(lost, kept=False)
        self.lose(NotStored.UNPACKED_FULL, sum(map(len, lost)))

    def _cut(self, chain: Chain, not_kept: set[int]) -> Iterator[Chain]:
        """Cut a chain where blocks that were not kept begin or end. A shared index settles all of a run."""
        if chain.life or not_kept.isdisjoint(chain.slots):
            yield chain
            return
        for _, run in groupby(range(len(chain)), key=lambda at: chain.slots[at] in not_kept):
            first, *rest = run
            part = chain.part(first, first + 1 + len(rest), self._block_tokens[chain.group])
            part.slots = chain.slots[first : first + len(part)]
            part.anchor = chain.anchor if first == 0 else None
            yield part

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
        return bool(self._planned or self._asks or (self.backlog and not self.held_up))

    def find(self, chain: Chain) -> list[int]:
        """Return the device blocks that hold the keys of a chain by now, NULL_BLOCK for those that are gone."""
        find, group = self._device.find, chain.group
        return [find(group, key) or NULL_BLOCK for key in chain.keys]

    def _hand_on(self, chain: Chain, store: StoreEntry) -> None:
        """Let another try be made by whoever holds the same bytes then."""
        if store.abandoned:
            self.lose(NotStored.RESET, len(chain))
        elif store.attempt == ATTEMPTS_MAX:
            self.lose(NotStored.COPY_FAILED, len(chain))
        else:
            self.defer(chain, store.attempt + 1)

    def _add_to_plan(self, chain: Chain, attempt: int) -> None:
        """Let a chain share the last transfer, if that is alike and not too long by then."""
        store = self._planned[-1] if self._planned else None
        if (
            store is None
            or (store.attempt, store.filled, store.life) != (attempt, chain.filled, chain.life)
            or len(store.blocks) + len(chain) > RUN_BLOCKS_MAX
        ):
            store = StoreEntry(self._ledger.next_id(), attempt=attempt, filled=chain.filled, life=chain.life)
            self._planned.append(store)
        store.chains.append(chain)
        store.blocks += chain.blocks
        store.slots += chain.slots
