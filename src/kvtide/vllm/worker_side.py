"""A worker's half: runs the plan of each step on a copy engine and says what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtide.copy import Direction, HostArena
from kvtide.core import Plan
from kvtide.vllm import memory
from kvtide.vllm.log import logger
from kvtide.vllm.stats import StepStats, TrafficStats
from kvtide.vllm.wire import StepMetadata, WorkerMetadata
from kvtide.worker import Worker, WorkerStats

WAIT_TIMEOUT_S = 0.05
"""How long an idle step waits for copies: a new request may have come meanwhile."""


class WorkerSide:
    """One rank. Copies begin before the forward pass where that is safe; each transfer is reported once."""

    def __init__(self, rank: int, kv_cache_config: Any, copy_threads: int) -> None:
        self._rank = rank
        self._kv_cache_config = kv_cache_config
        self._copy_threads = copy_threads
        self._stripes: list[memory.Stripe] = []
        self._worker: Worker | None = None
        self._arena: HostArena | None = None
        self._step: StepMetadata | None = None
        self._loading: dict[int, tuple[str, tuple[int, ...]]] = {}
        """Request and device blocks of each load in flight."""
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._unfilled: set[int] = set()
        self._reports: list[Any] = []
        self._traffic = TrafficStats()

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Take vLLM's KV tensors."""
        if kv_caches:
            self._stripes = memory.stripes_of(kv_caches, self._kv_cache_config)

    def begin_step(self, step: StepMetadata) -> None:
        """Take a step's metadata, before its forward pass, and begin all that need not wait for that.

        Loads write to blocks that no step reads any more, stores read blocks that earlier steps have filled. So the
        link is busy while the forward pass computes, however long that takes. The first step says how much host
        memory to map.
        """
        if self._worker is None and self._stripes:
            self._open(step.slots)
        self._step = step
        if self._worker is None:
            return
        for request_id, block in step.announce.items():
            self._finished.add(request_id)
            if block is not None:
                self._failed.add(request_id)
                self._unfilled.add(block)
        plan = step.plan
        self._loading.update((copy.id, (copy.request_id, copy.blocks)) for copy in plan.loads)
        filled = tuple(copy for copy in plan.stores if copy.filled or step.idle)
        self._start(Plan(plan.step, loads=plan.loads, stores=filled))
        if step.idle and plan.wait_for:
            self._worker.start(Plan(plan.step, wait_for=tuple(self._loading) or plan.wait_for))

    def forward_issued(self) -> None:
        """Begin the stores of blocks that this step's forward pass may fill."""
        step = self._step
        if step is None or self._worker is None or step.idle:
            return
        self._step = None
        self._start(Plan(step.plan.step, stores=tuple(copy for copy in step.plan.stores if not copy.filled)))

    def _open(self, slots: int) -> None:
        blocks = self._kv_cache_config.num_blocks
        engine, self._arena = memory.make_copy_engine(self._stripes, blocks, slots, self._copy_threads)
        self._worker = Worker(self._rank, engine, wait_timeout_s=WAIT_TIMEOUT_S)
        size = self._arena.slots * self._arena.slot_bytes
        logger.info("kvtide: rank %d maps %d slots, %.2f GiB of host memory", self._rank, slots, size / 2**30)

    def _start(self, plan: Plan) -> None:
        """Begin copies behind all compute that was issued until now."""
        if plan and self._worker is not None:
            self._worker.start(plan, memory.fence(self._stripes))

    def poll(self) -> None:
        """See what has ended."""
        if self._worker is None:
            return
        report = self._worker.poll()
        if not report:
            return
        self._reports.append(report)
        for transfer_id in report.done:
            request_id, _ = self._loading.pop(transfer_id, ("", ()))
            if request_id:
                self._finished.add(request_id)
        for transfer_id, why in report.failed:
            logger.warning("kvtide: rank %d could not copy: %s", self._rank, why)
            request_id, blocks = self._loading.pop(transfer_id, ("", ()))
            if request_id:
                self._finished.add(request_id)
                self._failed.add(request_id)
                self._unfilled.update(blocks)
        stats = self._worker.stats
        self._traffic.update(Direction.STORE, stats.store)
        self._traffic.update(Direction.LOAD, stats.load)

    def take_finished(self) -> tuple[set[str], set[str]]:
        """Return the requests whose loads are over, and those among them whose loads failed."""
        finished, self._finished = self._finished, set()
        failed, self._failed = self._failed, set()
        return finished, failed

    def take_unfilled(self) -> set[int]:
        """Return the blocks that failed loads left without content."""
        unfilled, self._unfilled = self._unfilled, set()
        return unfilled

    def take_report(self) -> WorkerMetadata | None:
        """Return what the scheduler side has to hear."""
        if not self._reports:
            return None
        reports, self._reports = tuple(self._reports), []
        return WorkerMetadata(reports)

    def take_stats(self) -> StepStats | None:
        """Return bytes and times of transfers since the last call."""
        return self._traffic.take()

    def copy_stats(self) -> WorkerStats | None:
        """Return what was copied so far, and how long that took."""
        return None if self._worker is None else self._worker.stats

    def end_step(self) -> None:
        """Begin what vLLM did not ask for: up to 0.30 it does not call `wait_for_save` without a forward pass."""
        self.forward_issued()
        self._step = None

    def shutdown(self) -> None:
        """End the copies and give memory and threads back."""
        if self._worker is not None and self._worker.close() and self._arena is not None:
            self._arena.close()
        self._worker = None
        self._stripes = []
