"""Lazy mode: blocks are stored when the device is about to evict them."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.chain import Chain
from kvtide.core.device import DevicePool, FreeBlock
from kvtide.core.groups import Group
from kvtide.core.host_pool import HostPool
from kvtide.core.requests import Request
from kvtide.core.stores import Stores

LOOKAHEAD_STEPS = 2
"""Clean blocks are kept for this many steps: one that allocates while the stores of the other are in flight."""


def clean_target(groups: Sequence[Group], step_tokens: int, device_blocks: int) -> int:
    """Return how many blocks at the front of the free queue are to be clean: what the next steps can allocate."""
    per_step = sum(-(-step_tokens // group.block_tokens) for group in groups)
    return min(device_blocks, LOOKAHEAD_STEPS * per_step)


class LazyPlanner:
    """Walks the device's free queue, next victim first, and stores what is cached there and not on the host.

    The cursor stands for the last block up to which all are clean. When that block has left the queue the walk
    starts again at the front: no block is skipped, and none is stored twice because dedup is by key.
    """

    def __init__(
        self, groups: tuple[Group, ...], device: DevicePool, host: HostPool, stores: Stores, target: int
    ) -> None:
        self._groups = groups
        self._device = device
        self._host = host
        self._stores = stores
        self._target = target
        self._cursor: int | None = None
        self._stopped_by_budget = False

    @property
    def waiting(self) -> bool:
        """Whether the pin budget ended the last walk too early."""
        return self._stopped_by_budget

    def advanced(self, request: Request, before_tokens: int) -> None:
        """Do nothing: blocks of a running request are not about to be evicted."""

    def preempted(self, request: Request) -> None:
        """Do nothing: its blocks go to the free queue."""

    def finished(self, request: Request) -> None:
        """Do nothing: its blocks go to the free queue."""

    def reset(self) -> None:
        """Start again from the front."""
        self._cursor = None
        self._stopped_by_budget = False

    def plan(self) -> None:
        """Walk until enough blocks are clean or the pin budget is used up, and store the dirty ones."""
        self._stopped_by_budget = False
        ahead = self._device.free_ahead(self._cursor) if self._cursor is not None else 0
        if ahead >= self._target:
            return
        dirty = self._walk(ahead)
        chains = self._chains(dirty)
        if sum(map(self._stores.begin, chains)) < len(dirty):
            self._cursor = None  # the host was full: look at these blocks again

    def _walk(self, ahead: int) -> list[FreeBlock]:
        """Move the cursor over clean blocks; return the dirty ones passed, as many as may be pinned."""
        walk = self._device.walk_free(self._cursor) if ahead else None
        if walk is None:
            self._cursor = None
            ahead = 0
            walk = self._device.walk_free(None)
        dirty: list[FreeBlock] = []
        seen = set()
        for free in walk or ():
            content = free.content
            if content is None or content.key in self._host.known(content.group):
                ahead += 1
                self._cursor = free.cursor
            elif (content.group, content.key) not in seen:
                if len(dirty) >= self._stores.room:
                    self._stopped_by_budget = True
                    break
                seen.add((content.group, content.key))
                dirty.append(free)
            if ahead >= self._target:
                break
        return dirty

    def _chains(self, dirty: list[FreeBlock]) -> list[Chain]:
        """Join blocks that continue each other. Prefixes are freed tail first, so look from the back."""
        chains: list[Chain] = []
        for block, content, _ in reversed(dirty):
            assert content is not None
            last = chains[-1] if chains else None
            if last is None or last.group != content.group or last.keys[-1] != content.parent:
                last = Chain(content.group, [], content.parent, content.end_tokens)
                chains.append(last)
            last.keys.append(content.key)
            last.blocks.append(block)
        return chains
