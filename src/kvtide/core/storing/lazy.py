"""Lazy mode: blocks are stored when the device is about to evict them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvtide.core.chain import Chain
from kvtide.core.config import OffloadConfig
from kvtide.core.device import BlockContent, DevicePool, FreeBlock
from kvtide.core.groups import Group, Key
from kvtide.core.index.index import Grant, Index
from kvtide.core.reasons import NotStored
from kvtide.core.requests import Request
from kvtide.core.storing.second_use import Selection
from kvtide.core.storing.stores import Stores

LOOKAHEAD_STEPS = 2
"""Clean blocks are kept for this many steps: one allocates while the stores of the other are in flight."""
CLEAN_SHARE = 4
"""And at least this part of the device, a quarter.

Several requests may load in one step, and how much that can be is known when it happens for the first time: too late.
Whole conversations were lost then, unnoticed, and computed again.
"""


def clean_target(
    groups: Sequence[Group],
    step_tokens: int,
    device_blocks: int,
    slots: int,
    loading_blocks: int = 0,
    *,
    answer_steps: int = 0,
) -> int:
    """Return how many blocks at the front of the free queue are to be clean: what the next steps can allocate.

    That is room for the tokens that they compute, and for loads, which a step's tokens do not bound:
    `loading_blocks` is the most there ever was in one step. No more than the host can hold: they would evict each
    other. So many more steps it takes until slots are granted, during which nothing is stored: `answer_steps`.
    """
    computing_blocks = sum(-(-step_tokens // group.block_tokens) for group in groups)
    steps = LOOKAHEAD_STEPS + answer_steps
    needed = max(steps * (computing_blocks + loading_blocks), device_blocks // CLEAN_SHARE)
    return min(device_blocks, slots, needed)


class LazyPlanner:
    """Walks the device's free queue, next victim first, and stores what is cached there and not on the host.

    The cursor stands for the last block up to which all are clean. When that block has left the queue the walk
    starts again at the front: no block is skipped, and none is stored twice because dedup is by key.

    A key whose store came to nothing, or that the host has evicted again, is not tried again until the engine has
    computed something: so an idle engine comes to rest whatever the size of the host and whatever fails.
    """

    def __init__(
        self, config: OffloadConfig, device: DevicePool, index: Index, selection: Selection, stores: Stores
    ) -> None:
        self._device = device
        self._index = index
        self._selection = selection
        self._stores = stores
        self._geometry = config.geometry
        self._slots = config.slots
        self._loading_blocks_max = 0
        self._target = self._clean_target(0)
        self._cursor: int | None = None
        self._tried: set[tuple[int, Key]] = set()
        self._asked: set[tuple[int, Key]] = set()
        """The index has not answered what becomes of these."""
        self._refused: dict[tuple[int, Key], NotStored] = {}
        """Why the index has not taken what the device may still have."""
        self._kept_out: set[tuple[int, Key]] = set()
        """Not to be stored, and counted: when it is about to be evicted, for not all engines say when it is."""
        self._stopped_by_budget = False
        self._planning = False
        self._holds = True
        """Whether blocks are kept from the engine while the index is asked: not after it has taken none. A request
        that waits for the last block could wait each time that a slot is asked for, which may be for ever (F13).
        """

    @property
    def waiting(self) -> bool:
        """Whether the pin budget ended the last walk too early, and will have room again when stores end."""
        return self._stopped_by_budget

    def advanced(self, request: Request, before_tokens: int) -> None:
        """Let everything be tried again. Blocks of a running request itself are not about to be evicted."""
        if not all(self._index.has(group, key) for group, key in self._tried):
            self._cursor = None  # it has passed them
        self._tried.clear()
        for index, group in enumerate(self._geometry.groups):
            self._selection.count_storable(request, index, request.full_blocks(index, group))

    def preempted(self, request: Request) -> None:
        """Do nothing: its blocks go to the free queue."""

    def finished(self, request: Request) -> None:
        """Do nothing: its blocks go to the free queue."""

    def reset(self) -> None:
        """Start again from the front."""
        self._cursor = None
        self._tried.clear()
        self._refused.clear()

    def evicted(self, group: int, key: Key) -> None:
        """Count a block that was taken before it was stored, or that was not to be stored."""
        why = self._refused.pop((group, key), NotStored.EVICTED_FROM_DEVICE)
        has, waits = self._index.has(group, key), self._stores.backlog.holds(group, key)
        if not (has or waits or (group, key) in self._asked):
            if self._selection.may_store(group, key):
                self._stores.lose(NotStored.STOPPED if self._stores.stopped else why, 1)
            else:
                self._keep_out(group, key)
        self._kept_out.discard((group, key))

    def plan(self, loading_blocks: int) -> None:
        """Walk until enough blocks are clean or the pin budget is used up, and store the dirty ones."""
        self._stopped_by_budget = False
        if loading_blocks > self._loading_blocks_max:
            self._loading_blocks_max = loading_blocks
            self._target = self._clean_target(loading_blocks)
        ahead = self._device.free_ahead(self._cursor) if self._cursor is not None else 0
        if ahead >= self._target:
            return
        chains = self._chains(self._walk(ahead))
        asked = {(chain.group, key) for chain in chains for key in chain.keys}
        self._tried |= asked
        if chains:
            self._asked |= asked
            self._planning = True
            self._stores.begin(chains, partial(self._granted, chains), hold=self._holds)
            self._planning = False
        if not self._stores.pinned_blocks:
            self._stopped_by_budget = False  # no store is under way that would make room by ending

    def _granted(self, chains: list[Chain], grants: list[Grant]) -> None:
        """Look again at the blocks that the host had no room for: at once, unless asking takes a step of its own."""
        self._holds = any(grant.runs for grant in grants)
        for chain, grant in zip(chains, grants, strict=True):
            names = [(chain.group, key) for key in chain.keys]
            self._asked.difference_update(names)
            if grant.left or grant.refused:
                taken = {(chain.group, key) for run in grant.runs for key in run.keys}
                self._not_taken([name for name in names if name not in taken], grant)

    def _not_taken(self, names: list[tuple[int, Key]], grant: Grant) -> None:
        """Take note of blocks that are not on their way to the host. Some may be there already."""
        if len(self._refused) >= self._geometry.device_blocks:
            self._refused.clear()
        self._refused.update((name, why) for why in grant.refused for name in names)
        if self._planning:
            self._cursor = None
            self._tried.difference_update(names)
            return
        gone = [name for name in names if self._device.find(*name) is None]
        for group, key in gone[: sum(grant.refused.values()) + sum(map(len, grant.left))]:
            self.evicted(group, key)  # that was not counted when it happened

    def _clean_target(self, loading_blocks: int) -> int:
        facts = self._geometry
        return clean_target(
            facts.groups,
            facts.step_tokens,
            facts.device_blocks,
            self._slots,
            loading_blocks,
            answer_steps=self._index.answer_steps,
        )

    def _walk(self, ahead: int) -> list[FreeBlock]:
        """Move the cursor over clean blocks; return the dirty ones passed, as many as may be pinned."""
        if not ahead:
            self._cursor = None  # its block has left the queue
        dirty: dict[tuple[int, Key], FreeBlock] = {}
        arriving = False
        for free in self._device.walk_free(self._cursor) or ():
            content = free.content
            if content is None or not self._is_dirty(content):
                ahead += 1
                # What is on its way to the host may not get there: the cursor stays before it, to look again.
                arriving = arriving or (content is not None and self._is_arriving(content.group, content.key))
                if not arriving:
                    self._cursor = free.cursor
            elif len(dirty) < self._stores.room:
                dirty[content.group, content.key] = free
            else:
                self._stopped_by_budget = True
                break
            if ahead >= self._target:
                break
        return list(dirty.values())

    def _is_dirty(self, content: BlockContent) -> bool:
        """Whether content would be lost if the engine took its block now, and something can be done about it."""
        group, key = content.group, content.key
        if self._index.has(group, key) or (group, key) in self._tried or (group, key) in self._asked:
            return False
        if self._selection.may_store(group, key):
            return True
        self._keep_out(group, key)
        return False

    def _is_arriving(self, group: int, key: Key) -> bool:
        return (group, key) in self._asked or self._index.is_arriving(group, key)

    def _keep_out(self, group: int, key: Key) -> None:
        """Count a block that may not be stored, once as long as the device has it."""
        if (group, key) not in self._kept_out:
            if len(self._kept_out) >= self._geometry.device_blocks:
                self._kept_out.clear()
            self._kept_out.add((group, key))
            self._stores.lose(NotStored.NOT_ADMITTED, 1)

    def _chains(self, dirty: list[FreeBlock]) -> list[Chain]:
        """Join blocks that continue each other. Prefixes are freed tail first, so look from the back."""
        chains: list[Chain] = []
        last_of_group: dict[int, Chain] = {}
        for block, content, _ in reversed(dirty):
            assert content is not None
            last = last_of_group.get(content.group)
            if last is None or last.keys[-1] != content.parent:
                last = Chain(content.group, [], content.parent, content.end_tokens)
                last_of_group[content.group] = last
                chains.append(last)
            last.keys.append(content.key)
            last.blocks.append(block)
        return chains
