"""A worker's half: runs the plan of each step on a copy engine and says what became of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kvtide.copy import CopyEngine, Direction, Fence, HostArena
from kvtide.core import Plan, Report
from kvtide.errors import CopyError
from kvtide.tiers.log_once import is_worth_a_line
from kvtide.units import size_text
from kvtide.vllm import kv_tensors, versions
from kvtide.vllm.load_news import LoadNews
from kvtide.vllm.log import logger
from kvtide.vllm.memory_at_node import MemoryAtNode
from kvtide.vllm.options import Copying
from kvtide.vllm.sharing import ALONE, Sharing
from kvtide.vllm.stats import RankStats, StepStats
from kvtide.vllm.step_lengths import StepLengths
from kvtide.vllm.step_messages import Looked, StepMetadata, WorkerMetadata
from kvtide.vllm.tiers import OpenTiers, no_tiers
from kvtide.worker import Worker, WorkerStats

LOAD_WAIT_S = 0.005
STORE_WAIT_S = 0.001
"""How long an idle step waits for copies. A request that comes meanwhile waits too, for the scheduler to look again.
Stores of a long prompt take a while, and who comes behind it asks right then: so no longer than it takes to keep the
engine from spinning (F19).
"""
_OTHERS_WAIT = 0.25
"""What part of a short step others wait at most, without asynchronous scheduling, for somebody's load (F31)."""


class WorkerSide:
    """One rank. Copies begin before the forward pass where that is safe; each transfer is reported once."""

    def __init__(
        self,
        rank: int,
        kv_cache_config: Any,
        copying: Copying,
        slots: int,
        kv_caches: Mapping[str, Any],
        *,
        open_tiers: OpenTiers = no_tiers,
        sharing: Sharing = ALONE,
        node: MemoryAtNode | None = None,
    ) -> None:
        """`slots` is what the scheduler is expected to say in the first step; `kv_caches` are vLLM's KV tensors.

        `open_tiers` opens what is below host memory, once that is mapped. `sharing`: with whom that is shared.
        `node` keeps host memory and what is below. None: this engine keeps its own.
        """
        self._last_begin: Fence | None = None
        """All compute that was issued before the forward pass of the last step."""
        self._sharing = sharing
        self._open_tiers = open_tiers
        self._node = node
        self._rank = rank
        self._kv_cache_config = kv_cache_config
        self._copying = copying
        self._announces_early = not versions.reads_before_bind(kv_cache_config)
        """Whether vLLM may hear of loads that are certain, for it reads no block before compute waits for them."""
        self._step: StepMetadata | None = None
        self.loads = LoadNews()
        self._steps = StepLengths()
        self._timed = 0
        self._has_stored = False
        """Whether the host may hold something that the scheduler relies on."""
        self._off = False
        self._failures = 0
        self._off_said = False
        self._full_said = False
        self._reports: list[Report] = []
        self._stats = RankStats(rank)
        self._engine: CopyEngine
        self._arena: HostArena | None
        """None: host memory is a node's."""
        self._open(slots, kv_caches)

    def _open(self, slots: int, kv_caches: Mapping[str, Any]) -> None:
        """Map host memory, or find who has it, and get ready to copy between it and vLLM's KV tensors."""
        self._slots = slots
        self._kv_caches = kv_caches
        self._stripes = kv_tensors.stripes_of(kv_caches, self._kv_cache_config)
        layout = partial(kv_tensors.layout_of, kv_caches, self._stripes, self._kv_cache_config.num_blocks)
        if self._node is None:
            self._open_own(slots, layout)
        else:
            copier = kv_tensors.make_copier(self._stripes, self._kv_cache_config.num_blocks, self._copying)
            self._engine, self._arena = self._node.open(copier, layout()), None
            share = self._sharing.share
            self._worker = Worker(self._rank, self._engine, wait_timeout_s=STORE_WAIT_S, share=share)

    def _open_own(self, slots: int, layout: Callable[[], str]) -> None:
        """Map host memory of this engine."""
        blocks = self._kv_cache_config.num_blocks
        self._engine, arena = kv_tensors.make_copy_engine(self._stripes, blocks, slots, self._copying, self._sharing)
        self._arena = arena
        share = arena.share
        tiers = self._open_tiers(self._rank, arena.memory, layout, share, self._engine.places)
        self._worker = Worker(
            self._rank,
            self._engine,
            tiers=tiers,
            wait_timeout_s=STORE_WAIT_S,
            share=share,
            slots=arena.slots if self._sharing.share.count > 1 else None,
        )
        size = size_text(arena.slots * arena.slot_bytes)
        whose = f", as {share.count} ranks together" if share.count > 1 else ""
        logger.info("kvtide: rank %d maps %d slots, %s of host memory%s", self._rank, arena.slots, size, whose)

    def register(self, kv_caches: Mapping[str, Any]) -> WorkerSide:
        """Take vLLM's KV tensors, once more.

        vLLM does not do so. Should it ever come with others: the scheduler relies on what the host holds, so that is
        not thrown away behind its back. This rank copies no more, and all of them stop.
        """
        if not kv_caches:
            return self
        stripes = kv_tensors.stripes_of(kv_caches, self._kv_cache_config)
        if not self._has_stored:
            self.shutdown()
            self._open(self._slots, kv_caches)
        elif kv_tensors.places_of(stripes) != kv_tensors.places_of(self._stripes):
            self._worker.stop("vLLM has registered another KV cache")
        return self

    def started(self) -> None:
        """Hear that vLLM has started."""
        self._engine.started()

    def begin_step(self, step: StepMetadata) -> None:
        """Take a step's metadata, before its forward pass, and begin all that need not wait for that.

        Loads write to blocks that no step reads any more, stores read blocks that earlier steps have filled. So the
        link is busy while the forward pass computes, however long that takes. Loads need not even wait for the step
        before, which computes still, where vLLM keeps back what that uses. How much host memory there is, the scheduler
        says (F22): normally what was expected.
        """
        if not step.slots:
            return  # the scheduler's half has nothing to do
        self.end_step()
        if step.slots != self._slots:
            self.shutdown()
            self._open(step.slots, self._kv_caches)
        self.started()  # if nobody said so
        self._step = step
        self._steps.begin(idle=step.idle)
        self._timed = step.timed
        self._worker.use(step.plan.pool)
        self._engine.share(compute=not step.idle)
        self.loads.arrived(step.arrived)
        if self.loads.heard:
            self._let_compute_wait()
        self.loads.announce(step.announce)
        last_begin = self._last_begin
        self._last_begin = kv_tensors.fence(self._stripes) if step.frees_deferred else None
        if step.plan:
            self._begin(step.plan, last_begin, idle=step.idle)

    def _begin(self, plan: Plan, last_begin: Fence | None, *, idle: bool) -> None:
        for transfer_id in plan.ask:
            # Nobody waits for it any more. If this rank copies it still, the news of its end is for the core alone.
            self.loads.failed(transfer_id)
        self.loads.begin(plan.loads)
        filled = tuple(copy for copy in plan.stores if copy.filled or idle)
        self._start(Plan(plan.step, loads=plan.loads, ask=plan.ask), last_begin)
        self._start(Plan(plan.step, stores=filled, errands=plan.errands))
        if idle and plan.wait_for:
            self._wait(plan)

    def _wait(self, plan: Plan) -> None:
        """Wait a moment for copies: there is nothing to compute, unless steps that were issued before do (F31)."""
        if self.loads.is_news_under_way or kv_tensors.computes(self._stripes):
            return  # a request is about to run, or runs
        if untold := self.loads.untold:
            wait = self._engine.wait_certain if self._announces_early else self._engine.wait
            wait(untold, LOAD_WAIT_S)
        elif not self.loads.certain:
            self._worker.start(Plan(plan.step, wait_for=plan.wait_for))

    def forward_issued(self) -> None:
        """Begin the stores of blocks that this step's forward pass may fill."""
        step = self._step
        if step is None or step.idle:
            return
        self._step = None
        if step.plan.stores:
            self._start(Plan(step.plan.step, stores=tuple(copy for copy in step.plan.stores if not copy.filled)))

    def _start(self, plan: Plan, after: Fence | None = None) -> None:
        """Begin copies behind all compute that was issued until now, or until `after`."""
        if plan:
            self._has_stored = self._has_stored or bool(plan.stores or plan.errands)
            self._worker.start(plan, after or kv_tensors.fence(self._stripes))

    def _let_compute_wait(self) -> None:
        """Let this step's forward pass, and every copy that comes after it, come after the loads it may read."""
        certain = self._engine.certain()
        self.loads.heard &= certain.keys()
        for transfer_id in self.loads.heard:
            certain[transfer_id]()

    def poll(self) -> None:
        """See what has ended, and which loads are certain to."""
        report = self._worker.poll()
        if report:
            self._take(report)
        if self.loads.untold and self._announces_early and self._worker.over is None:
            self.loads.now_certain(self._engine.certain(self._may_be_left_s()).keys())
        why = self._engine.lost or self._worker.over
        if why is not None and not self._off:
            self._off = True
            logger.error("kvtide: rank %d turns itself off: %s", self._rank, why)

    def _may_be_left_s(self) -> float:
        """Return how much of a load may be left when vLLM hears of it: so long nobody computes what reads it.

        Without asynchronous scheduling no step computes when the scheduler looks, and the next one begins at once.
        There a part of a step may be left: others wait for that, but who comes just too late waits for a whole step.
        """
        short_s = self._steps.short_s
        return short_s if math.isinf(short_s) or kv_tensors.computes(self._stripes) else short_s * _OTHERS_WAIT

    def _take(self, report: Report) -> None:
        self._reports.append(report)
        for transfer_id in report.done:
            self.loads.done(transfer_id)
        for transfer_id, why in report.failed:
            if transfer_id in self.loads.certain:
                # The forward pass that reads its blocks is issued, and nothing that the device says is worth anything.
                raise CopyError(f"the load of a request that runs already has failed: {why}")
            self._tell_failure(why)
            self.loads.failed(transfer_id)
        if report.not_kept and not self._full_said:
            self._full_said = True
            text = "kvtide: rank %d has no place left for blocks that do not pack: they are not stored, see %s"
            logger.warning(text, self._rank, "unpacked_full; packing=auto looks at the first blocks before it packs")
        stats = self._worker.stats
        self._stats.copied(Direction.STORE, stats.store)
        self._stats.copied(Direction.LOAD, stats.load)

    def _tell_failure(self, why: str) -> None:
        """Say that a copy failed. Where many fail, few lines say so."""
        self._failures += 1
        if not self._off and is_worth_a_line(self._failures):
            so_far = "" if self._failures == 1 else f" ({self._failures} times so far)"
            logger.warning("kvtide: rank %d could not copy%s: %s", self._rank, so_far, why)

    def take_report(self) -> WorkerMetadata | None:
        """Return what the scheduler side has to hear."""
        timed, self._timed = self._timed, 0
        nothing_new = not self._reports and not timed and self._off == self._off_said
        if nothing_new and not self.loads.is_to_be_asked:
            return None
        self._off_said = self._off
        return WorkerMetadata(self._take_reports(), self._off, timed, self.look)

    def look(self) -> Looked:
        """Return what has ended or become certain since this was last asked for, to a scheduler in this process.

        With asynchronous scheduling it would hear of that one or two steps later. As long would a request wait whose
        load is over, and blocks be pinned that are stored. Where a load has failed reports come with the next step, for
        by now vLLM has looked at what failed.
        """
        if self._worker.busy:
            self.poll()
        loaded = self.loads.take_loaded()
        return Looked(() if self.loads.has_failures else self._take_reports(), loaded)

    def _take_reports(self) -> tuple[Report, ...]:
        reports, self._reports = tuple(self._reports), []
        return reports

    def take_stats(self) -> StepStats | None:
        """Return bytes and times of transfers since the last call, and what the tiers did."""
        return self._stats.take(self._worker.tier_stats)

    def copy_stats(self) -> WorkerStats:
        """Return what was copied so far, and how long that took."""
        return self._worker.stats

    def end_step(self) -> None:
        """Begin what vLLM did not ask for: up to 0.30 it does not call `wait_for_save` without a forward pass.

        Nor, with speculative decoding, on stages of a pipeline but the last: these hear of no end of a step either.
        """
        self.forward_issued()
        self._step = None

    def settle(self, timeout_s: float) -> bool:
        """Wait until no copy reads or writes device memory. Returns whether that came true in time."""
        self._last_begin = None  # when that memory is there again vLLM may write zeros to it first
        return self._worker.settle(timeout_s)

    def shutdown(self) -> None:
        """End the copies and give memory and threads back."""
        if self._worker.close() and self._arena is not None:
            self._arena.close()
            if self._engine.places is not None:
                self._engine.places.unpacked.arena.close()
