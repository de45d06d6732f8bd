"""A copy engine in virtual time: copies are slow, fail, crash or hang, and end in any order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableSequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtide.copy.base import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.core.messages import Copy, Pool
from kvtide.sim.clock import HANG_TICKS_MAX, TICK_S, TICKS_PER_STEP
from kvtide.sim.run import Run
from kvtide.sim.tokens import MOVING, TORN

if TYPE_CHECKING:
    from kvtide.sim.rank import Rank

SLOW_COPY_TICKS_MAX = 12 * TICKS_PER_STEP
BROKEN = "the driver is gone"
MAP_TICKS = (1, 1, 1, 3 * TICKS_PER_STEP)
"""How long a rank takes to map the memory of a node."""

Memory = MutableSequence[int]
"""A stamp for each block, or for each slot."""


class CopyCrash(Exception):
    """Raised in the middle of a copy, as a driver would."""


@dataclass(slots=True, eq=False)
class Job:
    """One transfer on one rank, and what will become of it."""

    copy: Copy
    is_store: bool
    delay_ticks: int
    duration_ticks: int
    fails: bool
    crashes: bool
    refused: bool
    raises: bool
    seen: list[int] = field(default_factory=list)
    """What was at the source when the copy began."""
    begun: bool = False
    not_kept: frozenset[int] = frozenset()
    """Stores: slots that there will be no place for."""

    @property
    def is_certain(self) -> bool:
        """Whether it is a load that is going to end well: compute may be ordered behind it."""
        return not (self.is_store or self.fails or self.crashes)


class StepFence:
    """The compute of all steps up to one."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self) -> None:
        """Do nothing: in virtual time nobody can wait here, so a copy begins when that compute has ended."""


class SimCopyEngine(CopyEngine):
    """Moves stamps between the device and the host memory of a rank, beside compute."""

    def __init__(self, rank: Rank, run: Run) -> None:
        self.unfinished: dict[int, Job] = {}
        """Transfers that were taken and have not ended."""
        self.running: dict[int, Job] = {}
        """Those that have begun."""
        self.fenced: list[tuple[int, Job]] = []
        """Those that wait for compute, with the step whose."""
        self.device_lost = False
        """It takes no more copies. Those under way come to their end."""
        self.broken = False
        """It raises, whatever it is asked."""
        self.waited_ticks = 0
        """How long other ranks have been seen to wait, which is when this one waits too."""
        self._rank = rank
        self._run = run
        self._clock = run.clock
        self._watch = run.watch
        self._fault_counts = run.fault_counts
        self._log = run.log
        self._foreseen: dict[int, Job] = {}
        self._done: list[int] = []
        self._failed: list[tuple[int, str]] = []
        self._not_kept: list[tuple[int, tuple[int, ...]]] = []
        self._stored = self._loaded = 0
        self._closed = False
        self._life = self._life_wanted = 0

    def foresee(self, copy: Copy, *, is_store: bool, speed: tuple[int, int]) -> None:
        """Draw what will become of a copy. `speed`: ticks until it begins and until it ends, if all goes well."""
        draw, faults = self._run.draw, self._run.world.faults
        if self._run.happens("rank_skew"):
            speed = draw_speed(self._run)
        # Loads hang more often, for there are fewer of them.
        if draw.chance(faults.silent_rank) and (not is_store or draw.chance(32)):
            self._fault_counts["silent_rank"] += 1
            speed = speed[0], draw.between(SLOW_COPY_TICKS_MAX, HANG_TICKS_MAX)
        self._foreseen[copy.id] = Job(
            copy,
            is_store,
            *speed,
            draw.chance(faults.failed_copy),
            draw.chance(faults.copy_crash),
            draw.chance(faults.copy_refused),
            draw.chance(faults.copy_raises),
        )

    def exit(self) -> None:
        """End with the process: nothing moves any more."""
        self.unfinished.clear()
        self.running.clear()
        self.fenced.clear()

    def knows(self, transfer: int) -> bool:
        """Whether a transfer is under way, or has ended and nobody has polled since."""
        return transfer in self.unfinished or transfer in self._done or transfer in dict(self._failed)

    # ------------------------------------------------------------------ the interface of copy engines

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        """Take a transfer that was foreseen, or what is this rank's share of it."""
        job = self._foreseen.pop(copy.id)
        job.copy = copy
        if copy.life != self._life:
            self._failed.append((copy.id, f"this rank has no memory of life {copy.life}"))
            self._rank.has_news = True
            return True
        if self._closed or self.device_lost or job.refused or job.raises:
            self._rank.has_news = True
            self._fault_counts["copy_refused"] += job.refused
            if job.raises:
                self._fault_counts["copy_raises"] += 1
                raise CopyCrash("the driver does not answer")
            return False
        self.unfinished[copy.id] = job
        if job.is_store and self._run.world.faults.not_kept:
            job.not_kept = frozenset(slot for slot in copy.slots if self._run.happens("not_kept"))
        fence = self.fence_of(job, after)
        if fence <= self._rank.step_ended:
            self._clock.after(job.delay_ticks, self._begin, job)
        else:
            self.fenced.append((fence, job))
        return True

    def fence_of(self, job: Job, after: Fence | None) -> int:
        """Return the step whose compute must have ended before a copy (F6, F7)."""
        return after.step if isinstance(after, StepFence) else 0

    def poll(self) -> Finished:
        """Return what has ended."""
        if self.broken:
            raise CopyCrash(BROKEN)
        finished = Finished(tuple(self._done), tuple(self._failed), tuple(self._not_kept))
        self._done.clear()
        self._not_kept.clear()
        self._failed.clear()
        return finished

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Let virtual time pass."""
        if self.broken:
            raise CopyCrash(BROKEN)
        return self._pass_time(tuple(ids), timeout_s)

    def _pass_time(self, waited: tuple[int, ...], timeout_s: float) -> bool:
        end = self._clock.now + round(timeout_s / TICK_S) - self.waited_ticks
        while any(id_ in self.unfinished for id_ in waited):
            if self._clock.now >= end:
                return False
            self._clock.run_until_next(end - self._clock.now)
        return True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Let those that have begun, or are certain to end well, come to their end."""
        self._closed = True
        self.fenced = [entry for entry in self.fenced if entry[1].is_certain]
        for job in list(self.unfinished.values()):
            if not job.begun and not job.is_certain:
                self._over(job, "the copy engine was closed before the copy began")
        return self._pass_time(tuple(self.unfinished), timeout_s)

    def traffic(self, direction: Direction) -> Traffic:
        """Return how many transfers were done."""
        return Traffic(self._stored if direction is Direction.STORE else self._loaded)

    def certain(self, within_s: float = math.inf) -> Mapping[int, Fence]:
        """Return the loads that are going to end well."""
        return {id_: job.seen.clear for id_, job in self.unfinished.items() if job.is_certain}

    @property
    def lost(self) -> str | None:
        """Why nothing can be copied any more."""
        return "the device is lost" if self.device_lost else None

    def use(self, pool: Pool | None) -> None:
        """Map the memory of a node: it takes a moment."""
        life = 0 if pool is None else pool.life
        if life != self._life_wanted:
            self._life_wanted, self._life = life, 0
            self._clock.after(self._run.draw.pick(MAP_TICKS), self._map, life)

    def _map(self, life: int) -> None:
        if life == self._life_wanted and life:
            self._rank.map(life)
            self._life = life

    @property
    def life(self) -> int:
        """Which memory is mapped."""
        return self._life

    def slots_ready(self) -> int | None:
        """Return how many host slots can be used by now."""
        if self.broken:
            raise CopyCrash(BROKEN)
        return self._rank.slots_ready if self._rank.slots_grow else None

    # ------------------------------------------------------------------ copies

    def compute_ended(self, step: int) -> None:
        """Begin what waits for the compute of a step."""
        ready = [job for fence, job in self.fenced if fence <= step]
        self.fenced = [entry for entry in self.fenced if entry[0] > step]
        for job in ready:
            self._clock.after(job.delay_ticks, self._begin, job)

    def _begin(self, job: Job) -> None:
        copy, rank = job.copy, self._rank
        if copy.id not in self.unfinished:
            return  # closed
        self._watch.copy_begins(rank, job)
        job.begun = True
        self.running[copy.id] = job
        source, read, target, written = self._ends_of(job)
        rank.loads_moved += not job.is_store
        job.seen = [source[at] for at in read]
        for at in written:
            target[at] = MOVING
        if self._log:
            self._log.add(f"rank {rank.index} begins copy {copy.id}")
        self._clock.after(job.duration_ticks, self._end, job)

    def _end(self, job: Job) -> None:
        """Finish a copy. Whatever is raised, the copy is reported and the loop goes on (F15)."""
        if job.copy.id not in self.unfinished:
            return  # its process has ended
        try:
            self._move(job)
        except CopyCrash as crash:
            self._crashed(job, crash)

    def _crashed(self, job: Job, crash: CopyCrash) -> None:
        self._over(job, str(crash))

    def _move(self, job: Job) -> None:
        if job.crashes:
            self._fault_counts["copy_crash"] += 1
            raise CopyCrash("the driver gave up")
        if job.fails:
            self._fault_counts["failed_copy"] += 1
            self._over(job, "the copy failed")
            return
        source, read, target, written = self._ends_of(job)
        self._rank.loads_moved += not job.is_store
        for here, there, seen in zip(read, written, job.seen, strict=True):
            target[there] = TORN if source[here] != seen or there in job.not_kept else seen
        if job.not_kept:
            self._not_kept.append((job.copy.id, tuple(sorted(job.not_kept))))
        self._over(job, None)

    def _ends_of(self, job: Job) -> tuple[Memory, tuple[int, ...], Memory, tuple[int, ...]]:
        """Return where a copy reads from and where it writes to: the memory, and which places of it."""
        device, host, copy = self._rank.device, self._rank.memories[job.copy.life], job.copy
        if job.is_store:
            return device, copy.blocks, host, copy.slots
        return host, copy.slots, device, copy.blocks

    def _over(self, job: Job, failure: str | None) -> None:
        copy_id = job.copy.id
        self.running.pop(copy_id, None)
        del self.unfinished[copy_id]
        self._rank.has_news = True
        if failure is None:
            self._done.append(copy_id)
            self._stored += job.is_store
            self._loaded += not job.is_store
        else:
            self._failed.append((copy_id, failure))
        if self._log:
            self._log.add(f"rank {self._rank.index} ends copy {copy_id}: {failure or 'done'}")
        if self._rank.queue:
            self._rank.compute_next()


def draw_speed(run: Run) -> tuple[int, int]:
    """Return how many ticks pass before a copy begins and how many until it ends."""
    slow = run.happens("slow_copy")
    delays, durations = (SLOW_COPY_TICKS_MAX, SLOW_COPY_TICKS_MAX) if slow else (2, TICKS_PER_STEP)
    return run.draw.between(1, delays), run.draw.between(1, durations)
