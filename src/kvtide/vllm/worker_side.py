"""A worker's half: runs the plan of each step on a copy engine and says what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvtide.copy import CopyEngine, Direction, HostArena
from kvtide.core import Plan, Report
from kvtide.errors import CopyError
from kvtide.vllm import kv_tensors, versions
from kvtide.vllm.log import logger
from kvtide.vllm.options import Copying
from kvtide.vllm.stats import StepStats, TiersStats, TrafficStats
from kvtide.vllm.step_messages import StepMetadata, WorkerMetadata
from kvtide.worker import Worker, WorkerStats

if TYPE_CHECKING:
    from kvtide.tiers.stack import TierStack

LOAD_WAIT_S = 0.005
STORE_WAIT_S = 0.003
"""How long an idle step waits for copies. A request that comes meanwhile waits too, for the scheduler to look again."""


OpenTiers = Callable[[int, "npt.NDArray[np.uint8]", str], "TierStack"]
"""Opens the tiers of a rank, from the rank, its host slots as rows of bytes, and what is where in a slot."""


class WorkerSide:
    """One rank. Copies begin before the forward pass where that is safe; each transfer is reported once."""

    def __init__(
        self,
        rank: int,
        kv_cache_config: Any,
        copying: Copying,
        slots: int = 0,
        open_tiers: OpenTiers | None = None,
    ) -> None:
        """`slots` is what the scheduler is expected to say in the first step; 0 if that cannot be told.

        `open_tiers` opens what is below host memory, once that is mapped.
        """
        self._open_tiers = open_tiers
        self._rank = rank
        self._slots = slots
        self._kv_cache_config = kv_cache_config
        self._copying = copying
        self._announces_early = not versions.reads_before_bind(kv_cache_config)
        """Whether vLLM may hear of loads that are certain, for it reads no block before compute waits for them."""
        self._stripes: list[kv_tensors.Stripe] = []
        self._layout = ""
        self._engine: CopyEngine | None = None
        self._worker: Worker | None = None
        self._arena: HostArena | None = None
        self._step: StepMetadata | None = None
        self._loading: dict[int, tuple[str, tuple[int, ...]]] = {}
        """Request and device blocks of each load that vLLM has not heard of."""
        self._certain: set[int] = set()
        """Loads that vLLM has heard of while their last bytes are on their way: compute has to come after them."""
        self._timed = 0
        self._has_stored = False
        """Whether the host may hold something that the scheduler relies on."""
        self._off = False
        self._off_said = False
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._unfilled: set[int] = set()
        self._reports: list[Any] = []
        self._traffic = TrafficStats()
        self._tiers_stats = TiersStats(rank)

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Take vLLM's KV tensors.

        vLLM does so once. Should it ever come with others: the scheduler relies on what the host holds, so that is not
        thrown away behind its back. This rank copies no more, and all of them stop.
        """
        if not kv_caches:
            return
        stripes = kv_tensors.stripes_of(kv_caches, self._kv_cache_config)
        if self._worker is not None and self._has_stored:
            if kv_tensors.places_of(stripes) != kv_tensors.places_of(self._stripes):
                self._worker.stop("vLLM has registered another KV cache")
            return
        self._close()
        self._stripes = stripes
        if self._open_tiers is not None:
            self._layout = kv_tensors.layout_of(kv_caches, stripes, self._kv_cache_config.num_blocks)
        if self._slots:
            self._open(self._slots)

    def begin_step(self, step: StepMetadata) -> None:
        """Take a step's metadata, before its forward pass, and begin all that need not wait for that.

        Loads write to blocks that no step reads any more, stores read blocks that earlier steps have filled. So the
        link is busy while the forward pass computes, however long that takes. How much host memory there is, the
        scheduler says (F22): normally what was expected.
        """
        if self._stripes and (self._worker is None or step.slots != self._slots):
            self._close()
            self._open(step.slots)
        self._step = step
        self._timed = step.timed
        if self._worker is None or self._engine is None:
            return
        self._engine.share(compute=not step.idle)
        if self._certain:
            self._let_compute_wait(self._engine)
        for request_id, block in step.announce.items():
            self._finished.add(request_id)
            if block is not None:
                self._failed.add(request_id)
                self._unfilled.add(block)
        plan = step.plan
        for transfer_id in plan.ask:
            # Nobody waits for it any more. If this rank copies it still, the news of its end is for the core alone.
            self._announce_failed(transfer_id)
        self._loading.update((copy.id, (copy.request_id, copy.blocks)) for copy in plan.loads)
        filled = tuple(copy for copy in plan.stores if copy.filled or step.idle)
        self._start(Plan(plan.step, loads=plan.loads, stores=filled, errands=plan.errands, ask=plan.ask))
        if step.idle and plan.wait_for:
            if self._loading:
                wait = self._engine.wait_certain if self._announces_early else self._engine.wait
                wait(tuple(self._loading), LOAD_WAIT_S)
            elif not self._certain:  # otherwise a request is about to run
                self._worker.start(Plan(plan.step, wait_for=plan.wait_for))

    def forward_issued(self) -> None:
        """Begin the stores of blocks that this step's forward pass may fill."""
        step = self._step
        if step is None or self._worker is None or step.idle:
            return
        self._step = None
        self._start(Plan(step.plan.step, stores=tuple(copy for copy in step.plan.stores if not copy.filled)))

    def _open(self, slots: int) -> None:
        blocks = self._kv_cache_config.num_blocks
        self._slots = slots
        self._engine, self._arena = kv_tensors.make_copy_engine(self._stripes, blocks, slots, self._copying)
        tiers = None if self._open_tiers is None else self._open_tiers(self._rank, self._arena.memory, self._layout)
        self._worker = Worker(self._rank, self._engine, tiers=tiers, wait_timeout_s=STORE_WAIT_S)
        size = self._arena.slots * self._arena.slot_bytes
        logger.info("kvtide: rank %d maps %d slots, %.2f GiB of host memory", self._rank, slots, size / 2**30)

    def _start(self, plan: Plan) -> None:
        """Begin copies behind all compute that was issued until now."""
        if plan and self._worker is not None:
            self._has_stored = self._has_stored or bool(plan.stores or plan.errands)
            self._worker.start(plan, kv_tensors.fence(self._stripes))

    def _let_compute_wait(self, engine: CopyEngine) -> None:
        """Let this step's forward pass, and every copy that comes after it, come after the loads that are announced."""
        certain = engine.certain()
        self._certain &= certain.keys()
        for transfer_id in self._certain:
            certain[transfer_id]()

    def poll(self) -> None:
        """See what has ended, and which loads are certain to."""
        if self._worker is None or self._engine is None:
            return
        report = self._worker.poll()
        if report:
            self._take(self._worker, report)
        if self._loading and self._announces_early and self._worker.over is None:
            for transfer_id in self._loading.keys() & self._engine.certain().keys():
                request_id, _ = self._loading.pop(transfer_id)
                self._finished.add(request_id)
                self._certain.add(transfer_id)
        why = self._engine.lost or self._worker.over
        if why is not None and not self._off:
            self._off = True
            logger.error("kvtide: rank %d turns itself off: %s", self._rank, why)

    def _take(self, worker: Worker, report: Report) -> None:
        self._reports.append(report)
        for transfer_id in report.done:
            self._certain.discard(transfer_id)
            request_id, _ = self._loading.pop(transfer_id, ("", ()))
            if request_id:
                self._finished.add(request_id)
        for transfer_id, why in report.failed:
            if transfer_id in self._certain:
                # The forward pass that reads its blocks is issued, and nothing that the device says is worth anything.
                raise CopyError(f"the load of a request that runs already has failed: {why}")
            if not self._off:
                logger.warning("kvtide: rank %d could not copy: %s", self._rank, why)
            self._announce_failed(transfer_id)
        stats = worker.stats
        self._traffic.update(Direction.STORE, stats.store)
        self._traffic.update(Direction.LOAD, stats.load)

    def _announce_failed(self, transfer_id: int) -> None:
        """Let vLLM know that a load has come to nothing, unless it has heard of it."""
        request_id, blocks = self._loading.pop(transfer_id, ("", ()))
        if request_id:
            self._finished.add(request_id)
            self._failed.add(request_id)
            self._unfilled.update(blocks)

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
        timed, self._timed = self._timed, 0
        if not self._reports and not timed and self._off == self._off_said:
            return None
        self._off_said = self._off
        reports, self._reports = tuple(self._reports), []
        return WorkerMetadata(reports, self._off, timed)

    def take_stats(self) -> StepStats | None:
        """Return bytes and times of transfers since the last call, and what the tiers did."""
        traffic = self._traffic.take()
        tiers = self._tiers_stats.take(self._worker.tiers if self._worker is not None else ())
        if traffic is None or tiers is None:
            return traffic or tiers
        traffic.aggregate(tiers)
        return traffic

    def copy_stats(self) -> WorkerStats | None:
        """Return what was copied so far, and how long that took."""
        return None if self._worker is None else self._worker.stats

    def end_step(self) -> None:
        """Begin what vLLM did not ask for: up to 0.30 it does not call `wait_for_save` without a forward pass."""
        self.forward_issued()
        self._step = None

    def settle(self, timeout_s: float) -> bool:
        """Wait until no copy reads or writes device memory. Returns whether that came true in time."""
        return self._worker is None or self._worker.settle(timeout_s)

    def shutdown(self) -> None:
        """End the copies and give memory and threads back."""
        self._close()
        self._stripes = []

    def _close(self) -> None:
        if self._worker is not None and self._worker.close() and self._arena is not None:
            self._arena.close()
        self._worker = self._engine = self._arena = None
