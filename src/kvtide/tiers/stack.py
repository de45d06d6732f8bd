"""All tiers of one rank, as the core's errands see them: one place below host memory.

A lookup asks every tier and is answered by its deadline at the latest. A fetch goes down tier by tier until every block
has come. Blocks sink to each tier that wants them now.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kvtide.core.config import Admission, BelowConfig
from kvtide.core.messages import Answer, Clear, Errand, Fetch, Lookup, Name, Sink
from kvtide.tiers.base import Item, Outcome, Tier, TierKey, Verdict
from kvtide.tiers.config import TierConfig, Write, open_tiers
from kvtide.tiers.namespace import Namespace

CALL_BYTES_MAX = 4 << 20
"""Fetches are cut into calls of about this size: each answer shows that the tier is alive."""
_POLL_S = 0.0005
_CLEAR_AGAIN_S = 1.0
"""Between two tries to clear a tier that could not be cleared."""
T = TypeVar("T")


class Level(NamedTuple):
    """A tier, and how it is used."""

    tier: Tier
    deadline_s: float = 0.05
    write: Write = "through"
    admit: Admission = "all"

    def wants(self, sink: Sink) -> bool:
        """Whether blocks that sink now should be kept here."""
        if (self.write == "evict") != sink.leaving:
            return False
        if sink.leaving:
            return self.admit == "all" or sink.used
        return (self.admit == "second-use") == sink.used


@dataclass(slots=True, eq=False)
class _Job:
    """An errand under way."""

    errand: Errand
    begun_s: float
    hits: set[int] = field(default_factory=set)
    tickets: set[int] = field(default_factory=set)
    """Calls that are not answered yet."""
    level: int = 0
    """Fetch: where it is looked for now."""
    late: bool = False


class _Call(NamedTuple):
    """One call to one tier: which positions of which errand it is about."""

    job: _Job
    level: int
    positions: tuple[int, ...]


def tier_key(name: Name, weights: bytes = b"") -> TierKey:
    """Return the key of a block: its group, then its own key.

    `weights` stands for weights that have no name, because they were changed while the engine ran.
    """
    group, key = name
    return bytes((group,)) + (blake2b(key, key=weights, digest_size=32).digest() if weights else key)


def below_of(configs: Sequence[TierConfig]) -> BelowConfig | None:
    """Return what the core has to know of the tiers. None: there are none."""
    if not configs:
        return None
    return BelowConfig(
        through=frozenset(config.admit for config in configs if config.write == "through"),
        on_evict=frozenset(config.admit for config in configs if config.write == "evict"),
    )


def open_stack(
    configs: Sequence[TierConfig], namespace: Namespace, rank: int, memory: npt.NDArray[np.uint8]
) -> TierStack:
    """Open the tiers of one rank, whose host slots are the rows of `memory`."""
    tiers = open_tiers(configs, namespace, rank=rank, slot_bytes_max=memory.shape[1])
    levels = [
        Level(tier, config.deadline_ms / 1000, config.write, config.admit)
        for tier, config in zip(tiers, configs, strict=True)
    ]
    for tier in tiers:
        tier.register(memory.data.cast("B"))
    return TierStack(levels, lambda slot: memoryview(memory[slot]))


def _ask(call: Callable[[int, Sequence[T]], bool], argument: Sequence[T], ticket: int) -> bool:
    return call(ticket, argument)


class TierStack:
    """Runs errands on tiers. One thread starts, polls and closes."""

    def __init__(
        self,
        levels: Sequence[Level],
        memory: Callable[[int], memoryview],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`memory` returns the bytes of a host slot."""
        self._levels = tuple(levels)
        self._memory = memory
        self._clock = clock
        self._jobs: dict[int, _Job] = {}
        self._calls: dict[int, _Call] = {}
        self._last_ticket = 0
        self._progress_s = [0.0] * len(self._levels)
        """When each tier has last answered."""
        self._uncleared: dict[int, float] = {}
        """Tiers that could not be cleared, and when that was tried last. They are left alone until it has worked (F9),
        and the others go on meanwhile."""
        self._clearing_again: dict[int, int] = {}
        """The tier of a ticket."""
        self._weights = b""
        """See `tier_key`. The namespace names the weights that the engine was started with."""
        self._answers: list[Answer] = []
        self._late: list[int] = []

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers, nearest first."""
        return tuple(level.tier for level in self._levels)

    def start(self, errand: Errand) -> None:
        """Begin an errand. `poll` will answer it exactly once."""
        if errand.id in self._jobs:
            return  # the plan came twice
        job = _Job(errand, self._clock())
        self._jobs[errand.id] = job
        self._clear_again()
        if isinstance(errand, Lookup):
            keys = [tier_key(name, self._weights) for name in errand.names]
            for index, level in self._usable():
                self._call(job, index, range(len(keys)), partial(_ask, level.tier.lookup, keys))
        elif isinstance(errand, Fetch):
            self._descend(job, errand)
        elif isinstance(errand, Sink):
            items = self._items(errand, range(len(errand.slots)))
            for index, level in self._usable():
                if level.wants(errand):
                    self._call(job, index, range(len(items)), partial(_ask, level.tier.put, items))
        else:
            # Weights may have changed. What is stored from now on is for this engine alone: others that share a store,
            # and the next one that is started here, have the weights that the namespace names (F9).
            self._weights = os.urandom(16)
            for index, level in enumerate(self._levels):
                self._call(job, index, (index,), level.tier.clear)
        self._end_if_done(job)

    def poll(self) -> tuple[tuple[Answer, ...], tuple[int, ...]]:
        """Return the answers since the last call, and the fetches that have become late. Does not block."""
        for index, level in enumerate(self._levels):
            for ticket, outcomes in level.tier.poll():
                self._progress_s[index] = self._clock()
                self._hear(ticket, outcomes)
        self._look_at_the_clock()
        answers, self._answers = tuple(self._answers), []
        late, self._late = tuple(self._late), []
        return answers, late

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until one of these errands is over or late, at most `timeout_s`. Returns whether it came true."""
        waited = [id_ for id_ in ids if id_ in self._jobs]
        end_s = self._clock() + timeout_s
        while waited and not self._answers and not self._late:
            left_s = end_s - self._clock()
            if left_s <= 0:
                return False
            answers, late = self.poll()
            self._answers += answers
            self._late += late
            if not self._answers and not self._late:
                self._levels[self._nearest_busy(waited)].tier.wait(min(left_s, _POLL_S))
        return True

    def _nearest_busy(self, ids: Iterable[int]) -> int:
        """Return the nearest level that has calls of these errands under way.

        Several tiers cannot be waited for at a time, and one that has nothing to do would not wait at all.
        """
        tickets = (ticket for id_ in ids if id_ in self._jobs for ticket in self._jobs[id_].tickets)
        return min((self._calls[ticket].level for ticket in tickets), default=0)

    def knows(self, id_: int) -> bool:
        """Whether an errand is under way."""
        return id_ in self._jobs

    def close(self, timeout_s: float = 5.0) -> bool:
        """Close all tiers. Returns whether nothing touches host memory any more. May be called again."""
        end_s = self._clock() + timeout_s
        closed = [level.tier.close(max(0.0, end_s - self._clock())) for level in self._levels]
        answers, late = self.poll()
        self._answers += answers
        self._late += late
        return all(closed)

    # ------------------------------------------------------------------ inside

    def _usable(self) -> list[tuple[int, Level]]:
        return [(index, level) for index, level in enumerate(self._levels) if index not in self._uncleared]

    def _clear_again(self) -> None:
        """Try once more to clear what could not be cleared, now and then."""
        now = self._clock()
        for index, tried_s in self._uncleared.items():
            if now - tried_s >= _CLEAR_AGAIN_S and index not in self._clearing_again.values():
                self._uncleared[index] = now
                self._last_ticket += 1
                if self._levels[index].tier.clear(self._last_ticket):
                    self._clearing_again[self._last_ticket] = index

    def _call(self, job: _Job, level: int, positions: Iterable[int], make: Callable[[int], bool]) -> None:
        """Make a call; a tier that refuses it has nothing."""
        self._last_ticket += 1
        ticket = self._last_ticket
        if make(ticket):
            job.tickets.add(ticket)
            self._calls[ticket] = _Call(job, level, tuple(positions))

    def _items(self, errand: Fetch | Sink, positions: Iterable[int]) -> list[Item]:
        return [
            Item(tier_key(errand.names[position], self._weights), self._memory(errand.slots[position]))
            for position in positions
        ]

    def _descend(self, job: _Job, fetch: Fetch) -> None:
        """Ask the next tier for what has not come, until one takes the calls or there is none."""
        while job.level < len(self._levels) and not job.tickets:
            if job.level in self._uncleared:
                job.level += 1
                continue
            tier = self._levels[job.level].tier
            missing = [position for position in range(len(fetch.slots)) if position not in job.hits]
            if not missing:
                return
            per_call = max(1, CALL_BYTES_MAX // max(1, len(self._memory(fetch.slots[0]))))
            for first in range(0, len(missing), per_call):
                part = missing[first : first + per_call]
                items = self._items(fetch, part)
                self._call(job, job.level, part, partial(_ask, tier.get, items))
            if not job.tickets:
                job.level += 1

    def _hear(self, ticket: int, outcomes: tuple[Outcome, ...]) -> None:
        cleared = self._clearing_again.pop(ticket, None)
        if cleared is not None and outcomes[0].verdict is Verdict.HIT:
            self._uncleared.pop(cleared, None)
        call = self._calls.pop(ticket, None)
        if call is None:
            return  # of a lookup that was answered without it
        job = call.job
        job.tickets.discard(ticket)
        job.hits.update(
            position
            for position, outcome in zip(call.positions, outcomes, strict=True)
            if outcome.verdict is Verdict.HIT
        )
        if isinstance(job.errand, Fetch) and not job.tickets:
            job.level += 1
            self._descend(job, job.errand)
        self._end_if_done(job)

    def _end_if_done(self, job: _Job) -> None:
        complete = isinstance(job.errand, Lookup) and len(job.hits) == len(job.errand.names)
        if not job.tickets or complete:
            self._end(job)

    def _end(self, job: _Job) -> None:
        errand = job.errand
        for ticket in job.tickets:
            del self._calls[ticket]
        del self._jobs[errand.id]
        hits: tuple[int, ...] = tuple(sorted(job.hits))
        if isinstance(errand, Clear):
            self._uncleared = {index: self._clock() for index in range(len(self._levels)) if index not in job.hits}
            hits = (0,)  # nothing of what was there will be read
        self._answers.append(Answer(errand.id, hits, self._clock() - job.begun_s))

    def _look_at_the_clock(self) -> None:
        """Answer lookups whose silent tiers have had their time; tell which fetches have stalled (F18)."""
        now = self._clock()
        for job in list(self._jobs.values()):
            if isinstance(job.errand, Lookup):
                silent = [self._levels[self._calls[ticket].level] for ticket in job.tickets]
                if all(now - job.begun_s >= level.deadline_s for level in silent):
                    self._end(job)
            elif isinstance(job.errand, Fetch) and not job.late:
                since = max(job.begun_s, self._progress_s[job.level])
                if now - since >= self._levels[job.level].deadline_s - job.errand.waited_s:
                    job.late = True
                    self._late.append(job.errand.id)
