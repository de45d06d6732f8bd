"""vLLM's requests from their arrival to their end, as the core hears of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from kvtide.core import NotStored, OffloadManager
from kvtide.vllm.device_pool import VLLMDevicePool
from kvtide.vllm.doubts import Doubts
from kvtide.vllm.layout import Layout
from kvtide.vllm.live_lists import BlockTable, keys_of, table_for_stores
from kvtide.vllm.tracked import Tracked


class Requests:
    """Follows requests.

    A step costs next to nothing when nothing is stored or loaded: only requests that get new blocks are looked at,
    for a block can only have become full when the next one is allocated.
    """

    def __init__(
        self, manager: OffloadManager, device: VLLMDevicePool, layout: Layout, *, others_load: bool = False
    ) -> None:
        """`others_load`: kvtide is not the only connector."""
        self._manager = manager
        self._device = device
        self._layout = layout
        self._doubts = Doubts([group.block_tokens for group in layout.geometry.groups]) if others_load else None
        if self._doubts is not None:
            device.doubted = self._doubts.blocks
        self._eager = manager.config.mode == "eager"
        self.known: dict[str, Tracked] = {}
        self.holding: set[str] = set()
        """Those that hold blocks for a load, however it ended, and that vLLM has not scheduled since."""
        self.aborted: dict[str, Any] = {}
        """vLLM's requests that are over, whose blocks it keeps until their loads are."""
        self.stopped = False
        """A rank cannot copy any more: nothing is offered or stored."""
        self.prompt_tokens = self.device_tokens = 0
        """Of all requests, when they were first matched: what they had to have, and what the device had of it."""
        self._placed_again: set[str] = set()
        """Those that were matched anew in this step, so that news of their preemption is old."""
        self._first_steps: list[str] = []
        """Those that had hits on the device when they were scheduled for the first time, in the last step."""

    # ------------------------------------------------------------------ arrival and end

    def add(self, request: Any) -> Tracked:
        """Make a request known, once."""
        tracked = self.known.get(request.request_id)
        if tracked is None:
            hash_tokens, groups = self._layout.hash_tokens, self._layout.geometry.groups
            keys = [keys_of(request.block_hashes, hash_tokens, group.block_tokens) for group in groups]
            tracked = self.known[request.request_id] = Tracked(request.request_id, request, keys, [()] * len(groups))
            self._manager.add_request(request.request_id, keys, tracked.tables)
        return tracked

    def match(self, request: Any, device_tokens: int) -> None:
        """Take note that vLLM wants to place a request, of which the device has `device_tokens`."""
        tracked = self.add(request)
        if tracked.placed:  # preempted, and resumed before any step could tell
            self._preempt(tracked)
            self._placed_again.add(tracked.id)
        self.holding.discard(tracked.id)
        tracked.device_tokens = device_tokens
        if not tracked.matched:
            tracked.matched = True
            self.prompt_tokens += request.num_tokens
            self.device_tokens += device_tokens

    def place(self, request: Any, blocks: Any, load_tokens: int) -> bool:
        """Take note of the blocks that vLLM has allocated; return whether a load into them begins.

        Called again when the load is over, with nothing to load; then there is nothing to do.
        """
        tracked = self.add(request)
        if tracked.placed:
            return False
        own = [BlockTable(blocks.blocks[id_]) for id_ in self._layout.group_ids]
        tracked.tables[:] = tracked.own = own
        self._device.used(own)
        tracked.placed, tracked.blocks_gone = True, False
        tracked.loading = self._manager.admit(tracked.id, load_tokens)
        tracked.load_tokens = load_tokens
        self.holding.discard(tracked.id)
        if tracked.loading:
            self.holding.add(tracked.id)
            tracked.load_began_s = time.monotonic()
        self._store_from(tracked, own)
        return tracked.loading

    def finish(self, request: Any, block_ids: Sequence[Sequence[int]]) -> None:
        """Take note that a request is over; its blocks are still its own."""
        tracked = self.known.pop(request.request_id, None)
        if tracked is None:
            return
        self.holding.discard(tracked.id)
        if tracked.loading:
            self.aborted[tracked.id] = request
        in_doubt = self._give_up_doubtful(tracked, tracked.computed_tokens)
        if tracked.has_begun and not in_doubt and not self.stopped:
            self._store_from(tracked, [block_ids[id_] for id_ in self._layout.group_ids])
            self._manager.advance(tracked.id, tracked.computed_tokens)
            self._remember_parents(tracked)
        self._manager.finish(tracked.id)

    def _store_from(self, tracked: Tracked, blocks: Sequence[Sequence[int]]) -> None:
        """Let the core see these blocks, per group, and those that can be found by key."""
        tracked.tables[:] = [
            table_for_stores(group, blocks[index], tracked.keys[index], partial(self._device.find, index))
            for index, group in enumerate(self._layout.geometry.groups)
        ]

    # ------------------------------------------------------------------ steps

    def step(self, step: Any) -> None:
        """Tell the core about requests that were preempted, get new blocks, or were new in the last step."""
        if step.preempted_req_ids:
            self._preempt_all(step.preempted_req_ids)
        self._placed_again.clear()
        if self.stopped:
            return
        for request_id in self._first_steps:
            self._tell(self.known.get(request_id))
        self._first_steps.clear()
        changed, scheduled = self._that_got_blocks(step), step.num_scheduled_tokens
        if self._doubts is not None:
            self._doubts.step(step, [tracked for tracked in changed if not tracked.end_tokens])
        for tracked in changed:
            self._advance_one(tracked, scheduled[tracked.id])

    def heard(self) -> None:
        """Take note that vLLM has heard what became of a step: tokens, and loads of others that failed in it."""
        if self._doubts is not None:
            self._doubts.heard()

    def _that_got_blocks(self, step: Any) -> list[Tracked]:
        """Return requests that run and have got blocks in this step, resumed ones before new ones."""
        ids = [new.req_id for new in step.scheduled_new_reqs]
        cached = step.scheduled_cached_reqs
        if any(cached.new_block_ids):
            got = zip(cached.req_ids, cached.new_block_ids, strict=True)
            ids = [id_ for id_, blocks in got if blocks is not None] + ids
        return [found for id_ in ids if (found := self.known.get(id_)) and found.running]

    def _advance_one(self, tracked: Tracked, new_tokens: int) -> None:
        self.holding.discard(tracked.id)
        if tracked.end_tokens:
            self._tell(tracked)
        elif tracked.device_tokens:
            # vLLM lets a request hit blocks that another one fills in this very step: wait until that is over.
            self._first_steps.append(tracked.id)
        tracked.scheduled(new_tokens)

    def _tell(self, tracked: Tracked | None) -> None:
        """Tell the core what earlier steps have computed of a request."""
        if self._eager and tracked is not None and tracked.has_begun and not tracked.doubtful:
            self._manager.advance(tracked.id, tracked.computed_tokens)

    # ------------------------------------------------------------------ preemption

    def _preempt_all(self, request_ids: Iterable[str]) -> None:
        """Tell the core about preempted requests, once nothing can be found any more that they did not compute."""
        found = (self.known.get(id_) for id_ in request_ids if id_ not in self._placed_again)
        gone = [tracked for tracked in found if tracked is not None and tracked.placed]
        for tracked in gone:
            if tracked.running and tracked.end_tokens:
                self._forget_uncomputed(tracked)
        for tracked in gone:
            self._preempt(tracked)

    def _forget_uncomputed(self, tracked: Tracked) -> None:
        """Take blocks out of vLLM's prefix cache that have a key, although nothing was computed into them.

        vLLM gives blocks their keys when it schedules the step that fills them. With priority scheduling a request
        can be preempted in the very step that had scheduled it; its blocks keep those keys (vLLM #57580), and
        whoever hits them, or stores them, gets whatever they held before.
        """
        computed_tokens = tracked.computed_before_preemption()
        for index, group in enumerate(self._layout.geometry.groups):
            first = computed_tokens // group.block_tokens
            self._device.forget(index, tracked.own[index][first:], tracked.keys[index][first:])

    def _preempt(self, tracked: Tracked) -> None:
        """Its blocks are gone, but until someone else writes to them they can be found by key."""
        computed_tokens = tracked.computed_before_preemption()
        in_doubt = self._give_up_doubtful(tracked, computed_tokens)
        if tracked.has_begun and not in_doubt and self._eager:
            self._manager.advance(tracked.id, computed_tokens)
        self._remember_parents(tracked)
        self.holding.discard(tracked.id)
        self.restart(tracked)

    def _give_up_doubtful(self, tracked: Tracked, computed_tokens: int) -> bool:
        """Let nobody find the blocks of a request that ends in doubt, and count them; return whether it does."""
        if self._doubts is None or self._doubts.is_certain(tracked):
            return False
        self._doubts.leave(tracked, self.known.values())
        for index, group in enumerate(self._layout.geometry.groups):
            first = tracked.found_tokens // group.block_tokens
            self._device.forget(index, tracked.own[index][first:], tracked.keys[index][first:])
            if self._eager and not self.stopped:
                lost = computed_tokens // group.block_tokens - first
                self._manager.metrics.not_stored[NotStored.NOT_CERTAIN] += max(0, lost)
        return True

    def restart(self, tracked: Tracked) -> None:
        """Let the core expect the request to be matched again."""
        self._manager.preempt(tracked.id)
        if tracked.doubtful and self._doubts is not None:
            self._doubts.start_over(tracked)
        tracked.placed = tracked.loading = tracked.decoding = False
        tracked.end_tokens = 0

    def _remember_parents(self, tracked: Tracked) -> None:
        if not self._eager:
            for table, keys in zip(tracked.tables, tracked.keys, strict=True):
                self._device.remember_parents(table[:], keys[:])
