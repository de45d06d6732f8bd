"""A simulated place below host memory, as one rank sees it: slow, forgetful, lying, damaged, or out of order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from kvtide.core.config import Admission, BelowConfig
from kvtide.core.messages import Answer, Clear, Errand, Fetch, Lookup, Name, Sink
from kvtide.sim.clock import TICK_S, TICKS_PER_STEP, Clock
from kvtide.sim.draw import Draw
from kvtide.sim.faults import FaultCounts
from kvtide.sim.log import Log
from kvtide.sim.tokens import MOVING, TORN

DEADLINE_TICKS = 3 * TICKS_PER_STEP
"""A lookup is answered by then, and a fetch that is not over is late."""
SLOW_TICKS_MAX = 20 * TICKS_PER_STEP
HANG_TICKS_MAX = 60 * TICKS_PER_STEP
FETCH_IN_VAIN = 64
"""How often in 256 a fetch takes long and brings nothing, where engines do not wait for it."""
CLEAR_FAILS = 160
"""How often in 256 the bytes of a tier cannot be removed, where it often happens. Nothing depends on it."""

DAMAGED = -3
"""The stamp of a record whose bytes are not what was put."""


@dataclass(frozen=True, slots=True)
class TierWorld:
    """What lies below host memory in one world. Chances are out of 256."""

    through: frozenset[Admission]
    on_evict: frozenset[Admission]
    records_max: int
    min_fetch_tokens: int
    tier_slow: int
    """An errand takes much longer than its deadline."""
    tier_fails: int
    """An errand comes to nothing."""
    tier_lies: int
    """A lookup names blocks that are not there."""
    tier_forgets: int
    """A record is gone, on this rank only."""
    tier_damage: int
    """A record's bytes change. Tiers verify what they read."""
    warm: int
    """How likely a block is there from the start: another server has put it, or this one before it was restarted."""
    impatient: int
    """The engine does not wait for what is below."""

    @classmethod
    def draw(cls, draw: Draw) -> TierWorld | None:
        """Draw one, or none: most worlds end at host memory."""
        if not draw.chance(96):
            return None
        both: tuple[frozenset[Admission], ...] = (
            frozenset(),
            frozenset(("all",)),
            frozenset(("all",)),
            frozenset(("second-use",)),
            frozenset(("all", "second-use")),
        )
        chances = {kind: draw.pick((0, 0, 6, 24, 80)) for kind in TIER_FAULT_KINDS}
        return cls(
            through=draw.pick(both),
            on_evict=draw.pick(both),
            records_max=draw.pick((4, 40, 400)),
            min_fetch_tokens=draw.pick((1, 1, 4, 12)),
            warm=draw.pick((0, 128, 250)),
            impatient=draw.pick((0, 0, 16)),
            **chances,
        )

    def config(self) -> BelowConfig:
        """Return what the core is told."""
        return BelowConfig(through=self.through, on_evict=self.on_evict)


TIER_FAULT_KINDS: tuple[str, ...] = tuple(field.name for field in fields(TierWorld) if field.name.startswith("tier_"))


@dataclass(slots=True, eq=False)
class TierJob:
    """One errand on one rank."""

    errand: Errand
    begun_tick: int
    fails: bool
    records: dict[Name, int]
    """What the names stood for when it began: after a clear they stand for something else."""
    seen: tuple[int, ...] = ()
    """Sink: what was in the slots when it began."""
    over: bool = False


class SimTier:
    """Keeps stamps by name. Errands take their time and end in any order."""

    def __init__(
        self,
        world: TierWorld,
        host: list[int],
        clock: Clock,
        draw: Draw,
        fault_counts: FaultCounts,
        *,
        log: Log | None,
        has_news: Callable[[], None],
        clears_fail: bool = False,
        tries_patience: bool = False,
        hangs: int = 0,
    ) -> None:
        self.records: dict[Name, int] = {}
        self.jobs: dict[int, TierJob] = {}
        """Errands that are not answered yet."""
        self._world = world
        self._host = host
        self._clock = clock
        self._draw = draw
        self._fault_counts = fault_counts
        self._log = log
        self._has_news = has_news
        self._fetch_in_vain = FETCH_IN_VAIN if tries_patience else 0
        self._hangs = hangs
        self._clear_fails = CLEAR_FAILS if clears_fail else 0
        self._answers: list[Answer] = []
        self._late: list[int] = []

    def warm_up(self, contents: Mapping[Name, int]) -> None:
        """Put what others have left here. Each rank may have lost its own part."""
        for name, content in contents.items():
            if self._draw.chance(self._world.warm):
                self.records[name] = content

    def take(self, errand: Errand) -> None:
        """Begin an errand."""
        in_vain = isinstance(errand, Fetch) and self._draw.chance(self._fetch_in_vain)
        slow = self._happens("tier_slow") or in_vain
        ticks = self._draw.between(1, SLOW_TICKS_MAX if slow else TICKS_PER_STEP)
        if isinstance(errand, Fetch) and self._draw.chance(self._hangs):
            self._fault_counts["silent_rank"] += 1
            ticks = self._draw.between(SLOW_TICKS_MAX, HANG_TICKS_MAX)
        if isinstance(errand, Clear):
            self.records = {}
        job = TierJob(errand, self._clock.now, self._happens("tier_fails") or in_vain, self.records)
        self.jobs[errand.id] = job
        if isinstance(errand, Sink):
            job.seen = tuple(self._host[slot] for slot in errand.slots)
        elif isinstance(errand, Fetch):
            for slot in errand.slots:
                self._host[slot] = MOVING
        if isinstance(errand, Lookup | Fetch) and ticks > DEADLINE_TICKS:
            self._clock.after(DEADLINE_TICKS, self._at_deadline, job)
        if isinstance(errand, Clear) and self._draw.chance(self._clear_fails):
            job.fails = True
            self._fault_counts["clear_fails"] += 1
        self._clock.after(ticks, self._end, job)

    def poll(self) -> tuple[tuple[Answer, ...], tuple[int, ...]]:
        """Return what is over, and what is late."""
        answers, self._answers = tuple(self._answers), []
        late, self._late = tuple(self._late), []
        return answers, late

    def will_answer(self, errand: int) -> bool:
        """Whether an errand is over, and the next poll says so."""
        return any(answer.id == errand for answer in self._answers)

    def _at_deadline(self, job: TierJob) -> None:
        if job.over:
            return
        if isinstance(job.errand, Lookup):
            self._answer(job, ())
        else:
            self._late.append(job.errand.id)
            self._has_news()

    def _end(self, job: TierJob) -> None:
        if job.over:
            return
        errand = job.errand
        if isinstance(errand, Clear):
            self._answer(job, () if job.fails else (0,))
        elif isinstance(errand, Sink):
            self._answer(job, () if job.fails else self._keep(job, errand))
        elif isinstance(errand, Fetch):
            self._answer(job, self._bring(job, errand))
        else:
            self._answer(job, () if job.fails else self._find(job, errand))

    def _find(self, job: TierJob, lookup: Lookup) -> tuple[int, ...]:
        return tuple(
            position for position, name in enumerate(lookup.names) if name in job.records or self._happens("tier_lies")
        )

    def _bring(self, job: TierJob, fetch: Fetch) -> tuple[int, ...]:
        """Write what verifies to its slots; the others are left with whatever was written by then."""
        hits = []
        for position, (name, slot) in enumerate(zip(fetch.names, fetch.slots, strict=True)):
            if self._happens("tier_forgets"):
                job.records.pop(name, None)
            content = job.records.get(name)
            if content is not None and not job.fails and self.verifies(content):
                self._host[slot] = content
                hits.append(position)
        return tuple(hits)

    def verifies(self, content: int) -> bool:
        """Whether a record is what was put (F8)."""
        return content != DAMAGED

    def _keep(self, job: TierJob, sink: Sink) -> tuple[int, ...]:
        for name, slot, seen in zip(sink.names, sink.slots, job.seen, strict=True):
            content = seen if self._host[slot] == seen else TORN
            job.records[name] = DAMAGED if self._happens("tier_damage") else content
            while len(job.records) > self._world.records_max:
                del job.records[next(iter(job.records))]
        return tuple(range(len(sink.names)))

    def _answer(self, job: TierJob, hits: tuple[int, ...]) -> None:
        job.over = True
        del self.jobs[job.errand.id]
        seconds = (self._clock.now - job.begun_tick) * TICK_S
        self._answers.append(Answer(job.errand.id, hits, seconds))
        self._has_news()
        if self._log:
            self._log.add(f"errand {job.errand.id} is over: hits {list(hits)}")

    def _happens(self, kind: str) -> bool:
        happens = self._draw.chance(getattr(self._world, kind))
        if happens:
            self._fault_counts[kind] += 1
        return happens
