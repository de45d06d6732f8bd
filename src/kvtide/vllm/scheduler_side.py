"""The scheduler's half: vLLM's calls become events of the core, the core's plans become metadata of a step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from vllm.v1.request import RequestStatus

from kvtide.core import NULL_BLOCK, FullAttention, OffloadConfig, OffloadManager, StateSpace
from kvtide.core.events import CacheEvent
from kvtide.vllm import versions
from kvtide.vllm.device_pool import VLLMDevicePool
from kvtide.vllm.layout import Layout
from kvtide.vllm.live_lists import BlockTable, FoundTable, Nulls, keys_of
from kvtide.vllm.log import logger
from kvtide.vllm.requests import Tracked
from kvtide.vllm.resets import watch_resets
from kvtide.vllm.stats import CoreStats, StepStats
from kvtide.vllm.step_messages import StepMetadata, WorkerMetadata

PREFILL_TOKENS_MIN = 16
"""A step with at least so many tokens for each request mostly computes prompts."""
STEPS_TIMED_MAX = 64
"""Steps whose end is awaited at a time; what became of older ones is not asked any more."""


class SchedulerSide:
    """Translates. Every decision is the core's.

    A step costs next to nothing when nothing is stored or loaded: only requests that get new blocks are looked at,
    for a block can only have become full when the next one is allocated.
    """

    def __init__(self, config: OffloadConfig, layout: Layout) -> None:
        self.config = config
        self._layout = layout
        self._eager = config.mode == "eager"
        self._below = config.below is not None
        self._learns = self._below or config.min_load_tokens is None
        """Whether the core wants to know what takes how long."""
        self._timed: dict[int, tuple[float, int]] = {}
        """When steps that compute prompts were handed out, and their tokens, by a number."""
        self._last_timed = 0
        self._heard_s = 0.0
        self._requests: dict[str, Tracked] = {}
        self._admitted_loads = False
        """Whether loads were admitted since the last plan: some may be over without any copy."""
        self._placed_again: set[str] = set()
        """Requests that were matched anew in this step, so that news of their preemption is old."""
        self._loaded: set[str] = set()
        """Requests that hold blocks for a load, and that vLLM has not scheduled since."""
        self._aborted: dict[str, Any] = {}
        """vLLM's requests that are over, whose blocks it keeps until their loads are."""
        self._first_steps: list[str] = []
        """Requests that had hits on the device when they were scheduled for the first time, in the last step."""
        self._announce: dict[str, int | None] = {}
        """See `StepMetadata.announce`."""
        self._idle = False
        self._told_s = time.monotonic()
        """When the core was told last how time goes by."""
        self._overdue = False
        self._off = False
        """A rank cannot copy any more: nothing is offered or stored."""
        self._cache_manager: Any = None
        self._fails_by_hand = False
        """Whether a failed load is told to vLLM by giving its blocks back: there is no other way."""
        self._is_reset = False
        """Whether nothing was planned since the last reset, so that there is nothing to forget."""
        self._stats = CoreStats()
        self.bound = False
        """Whether vLLM's block pool is known; not so when the engine fails to start."""

    def bind(self, pool: Any, cache_manager: Any = None) -> None:
        """Take vLLM's block pool, and its cache manager if this vLLM hands it out."""
        self._device = VLLMDevicePool(pool, self._layout, walked=not self._eager)
        # On a GPU host memory is pinned while the engine serves already; the workers report how far that has come.
        slots_ready = 0 if versions.on_gpu() else None
        self.manager = OffloadManager(self.config, self._device, slots_ready=slots_ready)
        self.bound = True
        self._cache_manager = cache_manager or versions.find_cache_manager(pool)
        several_groups = len(self._layout.geometry.groups) > 1
        self._fails_by_hand = several_groups and not versions.FAILS_BY_REQUEST
        watch_resets(pool, self._cache_manager, self.device_resets)

    # ------------------------------------------------------------------ requests

    def add(self, request: Any) -> Tracked:
        """Make a request known, once."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            hash_tokens = self._layout.hash_tokens
            groups = self._layout.geometry.groups
            keys = [keys_of(request.block_hashes, hash_tokens, group.block_tokens) for group in groups]
            tracked = Tracked(request, keys, [()] * len(groups))
            self._requests[request.request_id] = tracked
            self.manager.add_request(request.request_id, keys, tracked.tables)
        return tracked

    def match(self, request: Any, device_tokens: int) -> tuple[int | None, bool]:
        """Offer what the host has beyond `device_tokens`, and keep it until vLLM has answered (F11).

        None: the request waits for what is below host memory; vLLM asks again in the next step.
        """
        tracked = self.add(request)
        if tracked.placed:  # preempted, and resumed before any step could tell
            self._preempt(tracked)
            self._placed_again.add(request.request_id)
        tracked.device_tokens = device_tokens
        if self._off or request.skip_reading_prefix_cache or not self._may_load(device_tokens):
            self.manager.give_up(request.request_id)
            return 0, False
        if self._loaded and not self._layout.reserves_room:
            # Nobody can preempt a request that holds blocks for a load and does not run: two of them could be in each
            # other's way for ever (F13).
            self.manager.give_up(request.request_id)
            return None, False
        if self._below and self.manager.waits(request.request_id):
            return None, False
        match = self.manager.match(request.request_id, device_tokens, request.num_tokens)
        if match.tokens and self._layout.drops_last_block:
            shorter = device_tokens + match.tokens - self._layout.boundary_tokens
            if not match.waits:
                match = self.manager.match(request.request_id, device_tokens, max(shorter, device_tokens) + 1)
        self.manager.reserve(match)
        return (None, False) if match.waits else (match.tokens, match.tokens > 0)

    def placed(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """Take note of the blocks that vLLM has allocated, and start the load that it accepted.

        Called again when the load is over, with nothing to load; then there is nothing to do.
        """
        tracked = self.add(request)
        if tracked.placed:
            return
        own = [BlockTable(blocks.blocks[id_]) for id_ in self._layout.group_ids]
        tracked.tables[:] = tracked.own = own
        self._device.used(own)
        tracked.placed, tracked.blocks_gone = True, False
        tracked.loading = self.manager.admit(request.request_id, external_tokens)
        if tracked.loading:
            self._admitted_loads = True
            self._loaded.add(request.request_id)
            tracked.load_tokens, tracked.load_began_s = external_tokens, time.monotonic()
        tracked.tables[:] = [self._table_for_stores(tracked, index, table) for index, table in enumerate(own)]

    def finished(self, request: Any, block_ids: Sequence[Sequence[int]]) -> None:
        """A request is over; its blocks are still its own."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return
        self._loaded.discard(request.request_id)
        if tracked.loading:
            self._aborted[request.request_id] = request
        if tracked.running and not self._off:
            for index, id_ in enumerate(self._layout.group_ids):
                tracked.tables[index] = self._table_for_stores(tracked, index, block_ids[id_])
            self.manager.advance(request.request_id, tracked.computed_tokens)
            self._remember_parents(tracked)
        self.manager.finish(request.request_id)

    # ------------------------------------------------------------------ steps

    def plan(self, step: Any) -> StepMetadata:
        """Return what the workers have to do in this step."""
        self._is_reset = False
        if step.preempted_req_ids:
            self._preempt_all(step.preempted_req_ids)
        if self._placed_again:
            self._placed_again.clear()
        if not self._off:
            self._advance(step)
        self._idle = step.total_num_scheduled_tokens == 0
        self._let_time_pass()  # here, for vLLM does not call `report` when no worker has anything to say
        plan = self.manager.plan(idle=self._idle)
        metadata = StepMetadata(plan, self.config.slots, self._idle, self._time_step(step) if self._learns else 0)
        if self._admitted_loads or self._overdue:
            self._admitted_loads = False
            self._announce_loads_without_copies(metadata)
        if self._announce:
            metadata.announce.update(self._announce)
            self._announce = {}
        return metadata

    def report(self, output: Any) -> None:
        """Take what the workers say, and see to it that vLLM learns of every load that came to nothing."""
        said = output.kv_connector_worker_meta
        if self._learns:
            self._learn_of_step(said.timed if isinstance(said, WorkerMetadata) else 0)
        outcome = self.manager.report(*(said.reports if isinstance(said, WorkerMetadata) else ()))
        for request_id in outcome.loaded:
            self._end_load(self._requests[request_id])
        for request_id in outcome.failed:
            tracked = self._requests[request_id]
            self._restart(tracked)
            self._ensure_failed(tracked, output)
        for request_id in tuple(output.finished_recving or ()):
            self._aborted.pop(request_id, None)
            self._arrived(request_id, output)
        if isinstance(said, WorkerMetadata) and said.off and not self._off:
            self._off = True
            self.manager.stop()  # what the host has cannot be had any more
            logger.error("kvtide is off: a rank cannot copy any more, and has said why")

    def reset(self) -> None:
        """Forget everything that is cached (F9)."""
        if not self._is_reset:
            self.manager.reset()
        self._is_reset = True

    def device_resets(self) -> None:
        """Hear that vLLM is about to forget what the device holds: nothing computed until now counts any more (F9).

        It cannot while requests have blocks, and does not preempt those that hold blocks for a load and do not run
        yet. They start again: their blocks go back, and those that a copy still writes to stay pinned until it ends.
        """
        self.reset()
        if self._cache_manager is None:
            return
        for request in self._aborted.values():
            self._cache_manager.free(request)
        for request_id in tuple(self._loaded):
            self._start_over(self._requests[request_id])

    @property
    def busy(self) -> bool:
        """Whether an idle engine has to go on stepping."""
        return bool(self._announce) or self.manager.busy

    def frees_soon(self) -> bool:
        """Whether waiting for copies makes room on the device."""
        return self.manager.overdue is None and self._device.frees_soon()

    def take_stats(self) -> StepStats | None:
        """Return what happened since the last call, now and then."""
        return self._stats.take(self.manager, self._device.count_pinned, idle=self._idle)

    def take_events(self) -> list[CacheEvent]:
        """Return what was stored and removed since the last call."""
        return self.manager.take_events() if self.config.events else []

    # ------------------------------------------------------------------ inside

    def _start_over(self, tracked: Tracked) -> None:
        """Let a request start again, once vLLM hears that its load is over, if one is under way."""
        request = tracked.request
        if request.status == RequestStatus.RUNNING:
            return
        self._take_blocks_back(request)
        if tracked.loading:
            tracked.blocks_gone = True
        else:
            self._restart(tracked)

    def _let_time_pass(self) -> None:
        """Let the core notice transfers that no rank reports, and say so, once as long as that lasts."""
        before_s, self._told_s = self._told_s, time.monotonic()
        self.manager.passed(self._told_s - before_s)
        overdue = self.manager.overdue
        if overdue is not None and not self._overdue:
            logger.error("kvtide: %s; nothing is loaded or stored until all ranks have answered", overdue)
        elif overdue is None and self._overdue:
            logger.warning("kvtide: all ranks have answered: blocks are loaded and stored again")
        self._overdue = overdue is not None

    def _time_step(self, step: Any) -> int:
        """Return a number for a step that shall be timed, 0 for others."""
        tokens, requests = step.total_num_scheduled_tokens, len(step.num_scheduled_tokens)
        if tokens < PREFILL_TOKENS_MIN * max(1, requests):
            return 0  # steps that only decode cost as much for a few tokens as for many
        self._last_timed += 1
        self._timed[self._last_timed] = (time.monotonic(), tokens)
        self._timed.pop(self._last_timed - STEPS_TIMED_MAX, None)
        return self._last_timed

    def _learn_of_step(self, timed: int) -> None:
        """Learn what computing a token of a prompt costs: a step begins when it is handed out and the last one is over.

        Not from one hand-out to the next: the next one may come at once, before this step, or much later.
        """
        now_s, heard_s = time.monotonic(), self._heard_s
        self._heard_s = now_s
        if timed in self._timed:
            began_s, tokens = self._timed.pop(timed)
            self.manager.computed(tokens, now_s - max(began_s, heard_s))

    def _end_load(self, tracked: Tracked) -> None:
        tracked.loading = False
        if self._learns:
            self.manager.loaded(tracked.load_tokens, time.monotonic() - tracked.load_began_s)

    def _may_load(self, device_tokens: int) -> bool:
        """Whether a load could begin at `device_tokens` and, if it fails, be reported."""
        if device_tokens % self._layout.boundary_tokens:
            return False  # inside a block that others may share
        return not self._fails_by_hand or self._cache_manager is not None

    def _table_for_stores(self, tracked: Tracked, index: int, blocks: Sequence[int]) -> Sequence[int]:
        group = self._layout.geometry.groups[index]
        if isinstance(group, FullAttention):
            return blocks
        keys = tracked.keys[index]
        if isinstance(group, StateSpace):
            blocks = Nulls(keys)
        return FoundTable(blocks, keys, partial(self._device.find, index))

    def _advance(self, step: Any) -> None:
        """Tell the core about the requests that get new blocks in this step, and those that were new in the last."""
        scheduled = step.num_scheduled_tokens
        if self._first_steps:
            for request_id in self._first_steps:
                self._tell(self._requests.get(request_id))
            self._first_steps.clear()
        for new in step.scheduled_new_reqs:
            self._advance_one(new.req_id, scheduled)
        cached = step.scheduled_cached_reqs
        got_blocks = cached.new_block_ids
        if any(got_blocks):
            for index, new_blocks in enumerate(got_blocks):
                if new_blocks is not None:
                    self._advance_one(cached.req_ids[index], scheduled)

    def _advance_one(self, request_id: str, scheduled: dict[str, int]) -> None:
        tracked = self._requests.get(request_id)
        if tracked is None or not tracked.running:
            return
        self._loaded.discard(request_id)
        if tracked.end_tokens:
            self._tell(tracked)
        elif tracked.device_tokens:
            # vLLM lets a request hit blocks that another one fills in this very step: wait until that is over.
            self._first_steps.append(request_id)
        tracked.scheduled(scheduled[request_id])

    def _tell(self, tracked: Tracked | None) -> None:
        """Tell the core what earlier steps have computed of a request."""
        if self._eager and tracked is not None and tracked.running and tracked.end_tokens:
            self.manager.advance(tracked.request.request_id, tracked.computed_tokens)

    def _preempt_all(self, request_ids: Iterable[str]) -> None:
        """Tell the core about preempted requests, once nothing can be found any more that they did not compute."""
        gone = [tracked for id_ in request_ids if (tracked := self._requests.get(id_)) is not None and tracked.placed]
        gone = [tracked for tracked in gone if tracked.request.request_id not in self._placed_again]
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
        request_id = tracked.request.request_id
        if tracked.running and self._eager and tracked.end_tokens:
            self.manager.advance(request_id, tracked.computed_before_preemption())
        self._remember_parents(tracked)
        self._restart(tracked)

    def _restart(self, tracked: Tracked) -> None:
        """Let the core expect the request to be matched again."""
        self.manager.preempt(tracked.request.request_id)
        self._loaded.discard(tracked.request.request_id)
        tracked.placed = tracked.loading = tracked.decoding = False
        tracked.end_tokens = 0

    def _remember_parents(self, tracked: Tracked) -> None:
        if not self._eager:
            for table, keys in zip(tracked.tables, tracked.keys, strict=True):
                self._device.remember_parents(table[:], keys[:])

    def _announce_loads_without_copies(self, metadata: StepMetadata) -> None:
        """Let the workers tell vLLM of loads that are over already: no worker will hear of them otherwise.

        Of those that are overdue, the workers that have not told it are asked by the plan.
        """
        outcome = self.manager.report()
        for request_id in outcome.loaded:
            self._requests[request_id].loading = False
            metadata.announce[request_id] = None
        for request_id in outcome.failed:
            tracked = self._requests[request_id]
            if request_id not in outcome.overdue:
                metadata.announce[request_id] = self._first_unfilled(tracked)
            elif self._fails_by_hand:
                self._take_blocks_back(tracked.request)
            self._restart(tracked)

    def _arrived(self, request_id: str, output: Any) -> None:
        """Let a request go on whose load is certain, though not all ranks have reported it."""
        tracked = self._requests.get(request_id)
        if tracked is None or not tracked.loading:
            return
        if self._is_failed(tracked, output):
            self._restart(tracked)
        elif self.manager.arrived(request_id):
            self._end_load(tracked)
        else:
            self._restart(tracked)
            self._ensure_failed(tracked, output)

    def _is_failed(self, tracked: Tracked, output: Any) -> bool:
        """Whether a worker has told vLLM that the load of a request failed."""
        failed = getattr(output, "failed_recving", None) or ()
        return tracked.request.request_id in failed or self._first_unfilled(tracked) in output.invalid_block_ids

    def _ensure_failed(self, tracked: Tracked, output: Any) -> None:
        """Let vLLM compute what was not loaded.

        A worker that saw the copy fail has said so. If it has not (the copy was fine, but a reset came between),
        the news that the load is over is held back, and all workers are asked to announce it as failed.
        """
        request = tracked.request
        first = self._first_unfilled(tracked)
        if tracked.blocks_gone or self._is_failed(tracked, output):
            return
        if self._fails_by_hand:
            self._take_blocks_back(request)
            return
        if output.finished_recving:
            output.finished_recving.discard(request.request_id)
        self._announce[request.request_id] = first

    def _take_blocks_back(self, request: Any) -> None:
        """Let vLLM compute a request from its beginning."""
        self._cache_manager.free(request)
        request.num_computed_tokens = 0

    def _first_unfilled(self, tracked: Tracked) -> int:
        """Return the block in which the load of a request was to begin (single-group models)."""
        index = tracked.device_tokens // self._layout.geometry.groups[0].block_tokens
        return next(iter(tracked.tables[0][index : index + 1]), NULL_BLOCK)
