"""The scheduler's half: vLLM's calls become events of the core, the core's plans become metadata of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvtide.core import Match, OffloadConfig, OffloadManager
from kvtide.vllm import versions
from kvtide.vllm.at_node import IndexAtNode
from kvtide.vllm.device_pool import VLLMDevicePool
from kvtide.vllm.evictions import watch_evictions
from kvtide.vllm.kv_events import as_vllm_events
from kvtide.vllm.layout import Layout
from kvtide.vllm.load_ends import LoadEnds
from kvtide.vllm.log import logger
from kvtide.vllm.overdue import OverdueWatch
from kvtide.vllm.requests import Requests
from kvtide.vllm.resets import watch_resets
from kvtide.vllm.stats import CoreStats, StepStats, summary
from kvtide.vllm.step_messages import Looked, StepMetadata, WorkerMetadata
from kvtide.vllm.step_times import StepTimes

NOTHING_SAID = WorkerMetadata(())


class SchedulerSide:
    """Translates. Every decision is the core's."""

    def __init__(
        self,
        config: OffloadConfig,
        layout: Layout,
        pool: Any,
        cache_manager: Any = None,
        *,
        open_node: Callable[[], IndexAtNode] | None = None,
    ) -> None:
        """`open_node` finds the node that keeps host memory. None: this engine keeps its own."""
        self.config = config
        self.group_ids = layout.group_ids
        self._layout = layout
        self._device = VLLMDevicePool(pool, layout, walked=config.mode == "lazy")
        self._open_node = open_node
        self._node = None if open_node is None else open_node()
        index = None if self._node is None else self._node.index
        # On a GPU host memory is pinned while the engine serves already; the workers report how far that has come. And
        # where ranks should share it, they say how much there is: less, if they cannot. That of a node they map first.
        waits = versions.on_gpu() or layout.replicas.sharing > 1 or layout.slots_turn_out or index is not None
        self.manager = OffloadManager(config, self._device, slots_ready=0 if waits else None, index=index)
        self._is_informed = not waits
        """Whether the workers were asked how many slots there are: a short first request is over before they say so."""
        cache_manager = cache_manager or versions.find_cache_manager(pool)
        self._frees_deferred = layout.keeps_blocks and versions.defers_frees(pool)
        self._requests = Requests(self.manager, self._device, layout, others_load=versions.others_load(pool))
        self._loads = LoadEnds(self.manager, self._requests, layout, cache_manager)
        self._times = StepTimes(self.manager)
        self._overdue = OverdueWatch(self.manager)
        self._is_overdue = False
        self._is_time_told = False
        """Whether the core knows how much time has passed since the last step."""
        self._stats = CoreStats()
        self._idle = False
        self._look: Callable[[], Looked] = Looked
        """Asks a worker in this process what has ended since it last spoke."""
        self._is_reset = False
        """Whether nothing was planned since the last reset, so that there is nothing to forget."""
        watch_resets(pool, cache_manager, self.device_resets)
        if config.mode == "lazy":  # eager mode has counted by then what it has not stored
            watch_evictions(pool, self._device, self.manager.evicted)

    def bind(self, pool: Any, cache_manager: Any = None) -> SchedulerSide:
        """Begin anew, with another block pool."""
        self._close_node()
        return SchedulerSide(self.config, self._layout, pool, cache_manager, open_node=self._open_node)

    # ------------------------------------------------------------------ requests

    def add(self, request: Any) -> None:
        """Make a request known, once."""
        self._requests.add(request)

    def match(self, request: Any, device_tokens: int) -> tuple[int | None, bool]:
        """Offer what the host has beyond `device_tokens`, and keep it until vLLM has answered (F11).

        None: the request waits for what is below host memory; vLLM asks again in the next step.
        """
        self._let_time_pass()
        self._requests.match(request, device_tokens)
        if not self._may_load(request, device_tokens):
            self.manager.give_up(request.request_id)
            return 0, False
        if self._requests.holding and not self._layout.reserves_room:
            # Nobody can preempt a request that holds blocks for a load and does not run: two of them could be in each
            # other's way for ever (F13).
            self.manager.give_up(request.request_id)
            return None, False
        if self.manager.waits(request.request_id):
            return None, False
        match = self._find(request, device_tokens)
        self.manager.reserve(match)
        return (None, False) if match.waits else (match.tokens, match.tokens > 0)

    def _may_load(self, request: Any, device_tokens: int) -> bool:
        """Whether a load could begin at `device_tokens` and, if it fails, be reported."""
        if self._requests.stopped or request.skip_reading_prefix_cache:
            return False
        inside_a_block = device_tokens % self._layout.boundary_tokens  # that others may share
        return not inside_a_block and self._loads.can_be_told

    def _find(self, request: Any, device_tokens: int) -> Match:
        match = self.manager.match(request.request_id, device_tokens, request.num_tokens)
        if not self._layout.drops_last_block or not match.tokens or match.waits:
            return match
        shorter = max(device_tokens, device_tokens + match.tokens - self._layout.boundary_tokens)
        return self.manager.match(request.request_id, device_tokens, shorter + 1)

    def placed(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """Take note of the blocks that vLLM has allocated, and start the load that it accepted."""
        if self._requests.place(request, blocks, external_tokens):
            self._loads.admitted = True

    def finished(self, request: Any, block_ids: Sequence[Sequence[int]]) -> None:
        """A request is over; its blocks are still its own."""
        self._requests.finish(request, block_ids)

    # ------------------------------------------------------------------ steps

    def plan(self, step: Any) -> StepMetadata:
        """Return what the workers have to do in this step."""
        self._is_reset = False
        self._is_informed = True
        self._requests.step(step)
        self._idle = step.total_num_scheduled_tokens == 0
        self._let_time_pass()  # here: vLLM does not call `report` when no worker has anything to say
        self._is_time_told = False
        plan = self.manager.plan(idle=self._idle and not self._layout.in_step_with_others)
        metadata = StepMetadata(plan, self.config.slots, self._idle, self._frees_deferred, self._times.begin(step))
        self._loads.announce(metadata, overdue=self._is_overdue)
        return metadata

    def _let_time_pass(self) -> None:
        """Tell how long the last step took, or the engine has rested, before anything is asked for in this one.

        What a node is asked for would be late otherwise, before it was asked.
        """
        if not self._is_time_told:
            self._is_time_told = True
            self._is_overdue = self._overdue.let_time_pass()

    def report(self, output: Any) -> None:
        """Take what the workers say."""
        said = output.kv_connector_worker_meta
        if not isinstance(said, WorkerMetadata):
            said = NOTHING_SAID
        self._times.end(said.timed)
        self._requests.heard()
        self._look = said.look or self._look
        looked = self._look()
        if looked.loaded:
            output.finished_recving = looked.loaded | (output.finished_recving or set())
        self._loads.report(self.manager.report(*said.reports, *looked.reports), output)
        if said.off and not self._requests.stopped:
            self._requests.stopped = True
            self.manager.stop()  # what the host has cannot be had any more
            logger.error("kvtide is off: a rank cannot copy any more, and has said why")

    def reset(self) -> None:
        """Forget everything that is cached (F9)."""
        if not self._is_reset:
            self.manager.reset()
        self._is_reset = True

    def device_resets(self) -> None:
        """Hear that vLLM is about to forget what the device holds."""
        self.reset()
        self._loads.start_over()

    @property
    def busy(self) -> bool:
        """Whether an idle engine has to go on stepping."""
        return bool(self._loads.unannounced) or self.manager.busy or not self._is_informed

    def frees_soon(self) -> bool:
        """Whether waiting for copies makes room on the device."""
        return self.manager.overdue is None and self._device.frees_soon()

    def take_stats(self) -> StepStats | None:
        """Return what happened since the last call, now and then."""
        attached = None if self._node is None else self._node.is_attached
        return self._stats.take(
            self.manager, self._requests, self._device.count_pinned, idle=self._idle, attached=attached
        )

    def take_events(self) -> Iterable[Any]:
        """Return what was stored and removed since the last call, as vLLM's KV cache events."""
        events = self.manager.take_events()
        return as_vllm_events(events, self._layout) if events else ()

    def shutdown(self) -> None:
        """Let go of the node, and say what it was all good for."""
        self._close_node()
        logger.info("kvtide: %s", summary(self.manager.metrics))

    def _close_node(self) -> None:
        if self._node is not None:
            self._node.close()
