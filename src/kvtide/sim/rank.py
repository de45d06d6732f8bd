"""A simulated rank: its memory, its compute stream and its copies, in virtual time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvtide.core.messages import Copy, Report
from kvtide.sim.clock import TICKS_PER_STEP
from kvtide.sim.draw import Draw
from kvtide.sim.faults import FaultCounts
from kvtide.sim.run import Run
from kvtide.sim.tier import HANG_TICKS_MAX, SimTier
from kvtide.sim.tokens import MOVING, NOTHING, TORN
from kvtide.sim.work import StepWork

SLOTS_PINNED_CHANCE, SLOTS_PINNED_MAX = 64, 8
"""How often in 256 steps, and how many at most, host slots become usable."""
SLOW_COPY_TICKS_MAX = 12 * TICKS_PER_STEP


class CopyCrash(Exception):
    """Raised in the middle of a copy, as a driver would."""


@dataclass(slots=True, eq=False)
class Job:
    """One transfer on one rank."""

    copy: Copy
    is_store: bool
    delay_ticks: int
    duration_ticks: int
    fails: bool
    crashes: bool
    seen: list[int] = field(default_factory=list)
    """What was at the source when the copy began."""


class Rank:
    """Computes steps in order, and copies beside compute, in any order."""

    def __init__(self, index: int, run: Run) -> None:
        world = run.world
        self.index = index
        self.device = [NOTHING] * (world.device_blocks + 1)
        self.loads_moved = 0
        """Counts beginnings and ends of loads: as long as it stands still, only compute writes to `device`."""
        self.host = [NOTHING] * world.host_slots
        self.slots_ready = world.slots_ready
        self.step_ended = 0
        """The last step whose compute has ended, with all before it."""
        self.computing: StepWork | None = None
        self.copying: dict[int, Job] = {}
        """Copies between their beginning and their end."""
        self.unfinished: dict[int, Job] = {}
        """Transfers that were taken and not reported."""
        self.has_news = False
        """Whether there is something to report."""
        self.has_device = True
        """False: it takes no more copies. Those under way come to their end."""
        self._slots_news: int | None = None
        self._faults = world.faults
        self.tier: SimTier | None = None
        if world.tier is not None:
            self.tier = SimTier(
                world.tier,
                self.host,
                run.clock,
                run.tier_draw,
                run.fault_counts,
                log=run.log,
                has_news=self._has_news,
                clears_fail=world.habits.clears_fail,
                tries_patience=world.habits.impatient,
                hangs=world.faults.silent_rank,
            )
        self._queue: deque[StepWork] = deque()
        self._fenced: list[tuple[int, Job]] = []
        self._done: list[int] = []
        self._failed: list[tuple[int, str]] = []
        self._clock = run.clock
        self._draw = run.draw
        self._watch = run.watch
        self._fault_counts = run.fault_counts
        self._log = run.log

    # ------------------------------------------------------------------ what the host says and hears

    def submit(self, work: StepWork) -> None:
        """Take the compute of a step, behind that of the steps before it."""
        if work.items and not self._queue and self.computing is None and self.may_compute(work):
            self._compute(work)
        else:
            self._queue.append(work)
            self._compute_next()

    def take(self, copy: Copy, step: int, *, is_store: bool, speed: tuple[int, int]) -> None:
        """Take a copy of a step's plan. `speed`: ticks until it begins and until it ends, unless this rank is off."""
        if not self.has_device:
            self._failed.append((copy.id, "the device is lost"))
            self.has_news = True
            return
        draw, faults = self._draw, self._faults
        if draw.chance(faults.rank_skew):
            self._fault_counts["rank_skew"] += 1
            speed = draw_speed(draw, faults.slow_copy, self._fault_counts)
        # Loads hang more often, for there are fewer of them.
        if draw.chance(faults.silent_rank) and (not is_store or draw.chance(32)):
            self._fault_counts["silent_rank"] += 1
            speed = speed[0], draw.between(SLOW_COPY_TICKS_MAX, HANG_TICKS_MAX)
        fails, crashes = draw.chance(faults.failed_copy), draw.chance(faults.copy_crash)
        job = Job(copy, is_store, *speed, fails=fails, crashes=crashes)
        self.unfinished[copy.id] = job
        fence = self.store_fence(step, copy) if is_store else self.load_fence(step)
        if fence <= self.step_ended:
            self._clock.after(job.delay_ticks, self._begin, job)
        else:
            self._fenced.append((fence, job))

    def answer(self, transfer: int) -> None:
        """Say of an overdue transfer that it is not under way here. If it is, its end will be said when it comes."""
        if not self.has_unfinished(transfer) and not self._will_report(transfer):
            self._failed.append((transfer, "this rank has no such transfer under way"))
            self.has_news = True

    def _will_report(self, transfer: int) -> bool:
        """Whether the next report has something to say of a transfer anyway."""
        said = transfer in self._done or any(transfer == failed for failed, _ in self._failed)
        return said or (self.tier is not None and self.tier.will_answer(transfer))

    def load_fence(self, step: int) -> int:
        """Return the step whose compute must have ended before this plan's loads: it may read their blocks (F7)."""
        return step - 1

    def store_fence(self, step: int, copy: Copy) -> int:
        """Return the step whose compute must have ended before a store of this plan: it fills its blocks (F6)."""
        return step - 1 if copy.filled else step

    def poll(self) -> Report:
        """Say what has ended since the last call."""
        self.has_news = False
        answers, late = self.tier.poll() if self.tier is not None else ((), ())
        report = Report(self.index, tuple(self._done), tuple(self._failed), self._slots_news, answers, late)
        self._slots_news = None
        self._done.clear()
        self._failed.clear()
        return report

    def has_unfinished(self, transfer: int) -> bool:
        """Whether a transfer or errand is under way here."""
        return transfer in self.unfinished or (self.tier is not None and transfer in self.tier.jobs)

    def is_certain(self, load: int) -> bool:
        """Whether a load is going to end well: compute may be ordered behind it."""
        job = self.unfinished.get(load)
        return job is not None and not (job.fails or job.crashes)

    def _has_news(self) -> None:
        self.has_news = True

    def pin_more(self) -> None:
        """Make some more host slots usable: each rank at its own pace."""
        if self._draw.chance(SLOTS_PINNED_CHANCE):
            self.slots_ready = min(len(self.host), self.slots_ready + self._draw.between(1, SLOTS_PINNED_MAX))
            self._slots_news = self.slots_ready
            self.has_news = True

    # ------------------------------------------------------------------ compute

    def _compute(self, work: StepWork) -> None:
        self.computing = work
        self._watch.compute_begins(self, work)
        self._clock.after(self._compute_ticks(), self._compute_ends, work)

    def _compute_next(self) -> None:
        """Begin the next step, passing over those that compute nothing."""
        while self._queue and self.computing is None and self.may_compute(self._queue[0]):
            work = self._queue.popleft()
            if work.items:
                self._compute(work)
            else:
                self._step_over(work.step)

    def may_compute(self, work: StepWork) -> bool:
        """Whether the loads have ended that a step must wait for (F7): they were announced before their end."""
        return not work.after_loads or not any(load in self.unfinished for load in work.after_loads)

    def _compute_ticks(self) -> int:
        if self._draw.chance(self._faults.slow_compute):
            self._fault_counts["slow_compute"] += 1
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
        if self._queue:
            self._compute_next()

    def _step_over(self, step: int) -> None:
        self.step_ended = step
        if self._fenced:
            ready = [job for fence, job in self._fenced if fence <= step]
            self._fenced = [entry for entry in self._fenced if entry[0] > step]
            for job in ready:
                self._clock.after(job.delay_ticks, self._begin, job)

    # ------------------------------------------------------------------ copies

    def _begin(self, job: Job) -> None:
        copy = job.copy
        self._watch.copy_begins(self, job)
        self.copying[copy.id] = job
        if job.is_store:
            device, host = self.device, self.host
            job.seen = [device[block] for block in copy.blocks]
            for slot in copy.slots:
                host[slot] = MOVING
        else:
            device, host = self.device, self.host
            self.loads_moved += 1
            job.seen = [host[slot] for slot in copy.slots]
            for block in copy.blocks:
                device[block] = MOVING
        if self._log:
            self._log.add(f"rank {self.index} begins copy {copy.id}")
        self._clock.after(job.duration_ticks, self._end, job)

    def _end(self, job: Job) -> None:
        """Finish a copy. Whatever is raised, the copy is reported and the loop goes on (F15)."""
        try:
            self._move(job)
        except CopyCrash as crash:
            self._crashed(job, crash)

    def _crashed(self, job: Job, crash: CopyCrash) -> None:
        self._over(job, str(crash))

    def _move(self, job: Job) -> None:
        copy, device, host = job.copy, self.device, self.host
        if job.crashes:
            self._fault_counts["copy_crash"] += 1
            raise CopyCrash("the driver gave up")
        if job.fails:
            self._fault_counts["failed_copy"] += 1
            self._over(job, "the copy failed")
            return
        if job.is_store:
            for block, slot, seen in zip(copy.blocks, copy.slots, job.seen, strict=True):
                host[slot] = seen if device[block] == seen else TORN
        else:
            self.loads_moved += 1
            for block, slot, seen in zip(copy.blocks, copy.slots, job.seen, strict=True):
                device[block] = seen if host[slot] == seen else TORN
        self._over(job, None)

    def _over(self, job: Job, failure: str | None) -> None:
        copy_id = job.copy.id
        del self.copying[copy_id]
        del self.unfinished[copy_id]
        self.has_news = True
        if failure is None:
            self._done.append(copy_id)
        else:
            self._failed.append((copy_id, failure))
        if self._log:
            self._log.add(f"rank {self.index} ends copy {copy_id}: {failure or 'done'}")
        if self._queue:
            self._compute_next()


def draw_speed(draw: Draw, slow_chance: int, fault_counts: FaultCounts) -> tuple[int, int]:
    """Return how many ticks pass before a copy begins and how many until it ends."""
    if draw.chance(slow_chance):
        fault_counts["slow_copy"] += 1
        return draw.between(1, SLOW_COPY_TICKS_MAX), draw.between(1, SLOW_COPY_TICKS_MAX)
    return draw.between(1, 2), draw.between(1, TICKS_PER_STEP)
