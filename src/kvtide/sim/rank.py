"""A simulated rank: its memory, its compute stream, and the real worker that copies beside compute."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence

from kvtide.core.messages import Name, Plan, Report
from kvtide.core.share import Share
from kvtide.sim.below import DEADLINE_TICKS
from kvtide.sim.clock import TICK_S, TICKS_PER_STEP
from kvtide.sim.copies import SimCopyEngine, StepFence
from kvtide.sim.host import HostSlots
from kvtide.sim.run import Run
from kvtide.sim.tier import SimTier
from kvtide.sim.tokens import NOTHING
from kvtide.sim.violation import Violation
from kvtide.sim.work import StepWork
from kvtide.tiers.stack import Level, TierStack, tier_key
from kvtide.worker import Worker

SLOTS_PINNED_CHANCE, SLOTS_PINNED_MAX = 64, 8
"""How often in 256 steps, and how many at most, host slots become usable."""
WAIT_TICKS_MAX = 16 * TICKS_PER_STEP
"""The deadline of a wait for a transfer."""
CLOSE_S = 1.0
CALL_SLOTS_MAX = 2
"""Fetches of more blocks are cut into several calls."""


class Rank:
    """Computes steps in order, and lets its worker run the plans."""

    def __init__(self, index: int, run: Run, host: HostSlots) -> None:
        """`host` is its part of the host slots, which other ranks may have too."""
        world = run.world
        self.index = index
        self.device = [NOTHING] * (world.device_blocks + 1)
        self.loads_moved = 0
        """Counts beginnings and ends of loads: as long as it stands still, only compute writes to `device`."""
        self.host = host.stamps
        self.slots = host.views if world.tier else []
        """The memory of each host slot, as tiers are given it."""
        self.memories: dict[int, MutableSequence[int]] = {0: self.host}
        """Where the slots of a copy are, by its `life`."""
        self.memory_of: Callable[[int], MutableSequence[int]] = self.memories.__getitem__
        """Finds the memory of a life at a node."""
        self._share = Share(index % world.replicas, world.replicas)
        self._slots_at_once = self.slots_ready = world.slots_ready
        self.slots_grow = world.slots_ready < world.host_slots
        self.step_ended = 0
        """The last step whose compute has ended, with all before it."""
        self.computing: StepWork | None = None
        self.has_news = False
        """Whether there may be something to report."""
        self.restless = 0
        """Counts what may end without any news: errands, by a deadline, and all copies of a worker that stops."""
        self.copies = SimCopyEngine(self, run)
        self.tiers: list[SimTier] = []
        self.stack = self._open_stack(run) if world.tier is not None else None
        self.worker = Worker(
            index, self.copies, tiers=self.stack, wait_timeout_s=WAIT_TICKS_MAX * TICK_S, share=self._share
        )
        self.queue: deque[StepWork] = deque()
        """Steps whose compute has not begun."""
        self._clock = run.clock
        self._draw = run.draw
        self._watch = run.watch
        self._happens = run.happens
        self._log = run.log

    def _open_stack(self, run: Run) -> TierStack:
        world = run.world.tier
        assert world is not None
        self.tiers = [SimTier(run, world, self._may_have_news) for _ in world.levels]
        deadline_s = DEADLINE_TICKS * TICK_S
        levels = [
            Level(tier, deadline_s, write, admit) for tier, (write, admit) in zip(self.tiers, world.levels, strict=True)
        ]
        salts = map("salt {}".format, itertools.count())
        return TierStack(
            levels,
            self.slots.__getitem__,
            clock=lambda: run.clock.now * TICK_S,
            new_salt=lambda: next(salts).encode(),
            call_bytes_max=CALL_SLOTS_MAX * len(self.slots[0]),
            share=self._share,
        )

    def _may_have_news(self) -> None:
        self.has_news = True

    def warm_up(self, contents: Mapping[Name, int]) -> None:
        """Let the tiers hold what another server has left there."""
        for tier in self.tiers:
            tier.warm_up((tier_key(name), content) for name, content in contents.items())

    # ------------------------------------------------------------------ what the host says and hears

    def start(self, plan: Plan, after: StepFence) -> None:
        """Begin what a plan asks for, behind the compute that was submitted until now (F6, F7)."""
        self.has_news = self.has_news or bool(plan.ask)
        self.restless += len(plan.errands)
        self.worker.start(plan, after)

    def submit(self, work: StepWork) -> None:
        """Take the compute of a step, behind that of the steps before it."""
        if work.items and not self.queue and self.computing is None and self.may_compute(work):
            self._compute(work)
        else:
            self.queue.append(work)
            self.compute_next()

    def wait(self, plan: Plan, begun_tick: int) -> None:
        """Wait for transfers, because the engine has nothing else to do. All ranks have begun to at the same time."""
        self.copies.waited_ticks = self._clock.now - begun_tick
        self.worker.start(plan)
        self.copies.waited_ticks = 0

    def poll(self) -> Report:
        """Say what has ended since the last call. Only worth asking with news, or when it is restless."""
        self.has_news = False
        report = self.worker.poll()
        self.restless -= len(report.answers)
        self._watch.polled(self, report)
        return report

    def lose_device(self, *, breaks: bool) -> None:
        """Let no copy begin any more. `breaks`: whatever the copy engine is asked, it raises."""
        self.copies.broken, self.copies.device_lost = breaks, not breaks
        self.restless += 1

    def stop(self, why: str) -> None:
        """Let the worker take no more copies."""
        self.worker.stop(why)
        self.restless += 1

    def close(self) -> None:
        """End as an engine does that is told to: nothing is under way any more but what tiers do for themselves."""
        self.worker.settle(CLOSE_S)
        if not self.worker.close(CLOSE_S):
            raise Violation("I8", f"the worker of rank {self.index} cannot be closed, and nothing is under way")
        self._watch.polled(self, self.worker.poll())

    @property
    def now(self) -> int:
        """The tick."""
        return self._clock.now

    def has_unfinished(self, transfer: int) -> bool:
        """Whether a transfer or errand is under way here."""
        return transfer in self.copies.unfinished or (self.stack is not None and self.stack.knows(transfer))

    def map(self, life: int) -> None:
        """Have the memory of a life: some of its slots can be used at once."""
        self.memories[life] = self.memory_of(life)
        self.slots_ready = self._slots_at_once
        self.has_news = True

    def pin_more(self) -> None:
        """Make some more host slots usable: each rank at its own pace."""
        if self._draw.chance(SLOTS_PINNED_CHANCE):
            self.slots_ready = min(len(self.host), self.slots_ready + self._draw.between(1, SLOTS_PINNED_MAX))
            self.has_news = True

    # ------------------------------------------------------------------ compute

    def _compute(self, work: StepWork) -> None:
        self.computing = work
        self._watch.compute_begins(self, work)
        self._clock.after(self._compute_ticks(), self._compute_ends, work)

    def compute_next(self) -> None:
        """Begin the next step, passing over those that compute nothing."""
        while self.queue and self.computing is None and self.may_compute(self.queue[0]):
            work = self.queue.popleft()
            if work.items:
                self._compute(work)
            else:
                self._step_over(work.step)

    def may_compute(self, work: StepWork) -> bool:
        """Whether the loads have ended that a step must wait for (F7): they were announced before their end."""
        return not work.after_loads or not any(load in self.copies.unfinished for load in work.after_loads)

    def _compute_ticks(self) -> int:
        if self._happens("slow_compute"):
            return self._draw.between(TICKS_PER_STEP, 3 * TICKS_PER_STEP)
        return self._draw.between(1, TICKS_PER_STEP - 1)

    def _compute_ends(self, work: StepWork) -> None:
        self._watch.compute_ends(self, work)
        device = self.device
        for block, content in zip(work.write_blocks, work.write_stamps, strict=True):
            device[block] = content
        self.computing = None
        if self._log:
            self._log.add(f"rank {self.index} has computed step {work.step}")
        self._step_over(work.step)
        if self.queue:
            self.compute_next()

    def _step_over(self, step: int) -> None:
        self.step_ended = step
        if self.copies.fenced:
            self.copies.compute_ended(step)
