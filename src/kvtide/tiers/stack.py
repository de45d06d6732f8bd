"""All tiers of one rank, as the core's errands see them: one place below host memory.

A lookup asks every tier and is answered by its deadline at the latest. A fetch goes down tier by tier until every block
has come. Blocks sink to each tier that wants them now. A clear is answered at once: from then on, nothing that was
there before is found, whether the tiers have emptied themselves or not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kvtide.core.config import Admission, BelowConfig
from kvtide.core.messages import Answer, Clear, Errand, Fetch, Lookup, Name, Sink
from kvtide.core.share import ALL, Share
from kvtide.tiers.base import Item, KeyResult, Tier, TierKey, TierStats, Verdict
from kvtide.tiers.clears import Clears
from kvtide.tiers.config import TierConfig, Write, open_tiers, tier_names
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.places import InSlots, Places

CALL_BYTES_MAX = 4 << 20
"""Fetches are cut into calls of about this size: each answer shows that the tier is alive."""
_POLL_S = 0.0005
T = TypeVar("T")


class Level(NamedTuple):
    """A tier, and how it is used."""

    tier: Tier
    deadline_s: float = 0.05
    write: Write = "through"
    admit: Admission = "all"
    place: str = "a tier"
    """What the log calls it."""
    name: str = "tier"
    """What metrics call it."""

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
    form: int = 0
    """Fetch: and in which form (`Places`)."""
    late: bool = False


class _Call(NamedTuple):
    """One call to one tier: which positions of which errand it is about."""

    job: _Job
    level: int
    positions: tuple[int, ...]


_GROUPS = [bytes((group,)) for group in range(256)]


def tier_key(name: Name, salt: bytes = b"") -> TierKey:
    """Return the key of a block: its group, then its own key.

    `salt` stands for weights that have no name, because they were changed while the engine ran.
    """
    group, key = name
    return _GROUPS[group] + (blake2b(key, key=salt, digest_size=32).digest() if salt else key)


def random_salt() -> bytes:
    """Return a salt that no engine has had before."""
    return os.urandom(16)


def below_of(configs: Sequence[TierConfig]) -> BelowConfig | None:
    """Return what the core has to know of the tiers. None: there are none."""
    if not configs:
        return None
    return BelowConfig(
        through=frozenset(config.admit for config in configs if config.write == "through"),
        on_evict=frozenset(config.admit for config in configs if config.write == "evict"),
    )


def open_stack(
    configs: Sequence[TierConfig],
    namespace: Namespace,
    rank: int,
    memory: npt.NDArray[np.uint8],
    share: Share = ALL,
    *,
    places: Places | None = None,
) -> TierStack:
    """Open the tiers of one rank, whose host slots are the rows of `memory`, some of them (`share`) or all its own.

    `places`: where blocks are if they are packed, and not all in their slots.
    """
    pieces = [memory.data.cast("B")]
    if places is not None and places.more_memory is not None:
        pieces.append(places.more_memory)  # now, for it may be given up while tiers are being opened
    tiers = open_tiers(configs, namespace, rank=rank, slot_bytes_max=memory.shape[1])
    levels = [
        Level(tier, config.deadline_ms / 1000, config.write, config.admit, config.place, name)
        for tier, config, name in zip(tiers, configs, tier_names([config.type for config in configs]), strict=True)
    ]
    for tier in tiers:
        for piece in pieces:
            tier.register(piece)
    return TierStack(levels, lambda slot: memoryview(memory[slot]), share=share, places=places)


class TierStack:
    """Runs errands on tiers. One thread starts, polls and closes."""

    def __init__(
        self,
        levels: Sequence[Level],
        memory: Callable[[int], memoryview],
        *,
        clock: Callable[[], float] = time.monotonic,
        new_salt: Callable[[], bytes] = random_salt,
        call_bytes_max: int = CALL_BYTES_MAX,
        share: Share = ALL,
        places: Places | None = None,
    ) -> None:
        """`memory` returns the bytes of a host slot; `new_salt` returns bytes that it has never returned before.

        `share`: blocks that are not this rank's are another's to keep and to bring. Here they count as found.
        `places`: where blocks are if they are not all in their slots.
        """
        self._levels = tuple(levels)
        self._places = InSlots(memory) if places is None else places
        self._clock = clock
        self._new_salt = new_salt
        self._call_bytes_max = call_bytes_max
        self._share = share
        self._jobs: dict[int, _Job] = {}
        self._calls: dict[int, _Call] = {}
        self._last_ticket = 0
        self._progress_s = [0.0] * len(self._levels)
        """When each tier has last answered."""
        self._clears = Clears([level.tier for level in self._levels], [level.place for level in self._levels], clock)
        self._salt = b""
        """See `tier_key`. Empty before the first clear: the namespace names the weights that the engine began with."""
        self._answers: list[Answer] = []
        self._late: list[int] = []
        self._closes = False
        """Nothing more is asked for: the memory may be about to go."""

    def stats(self) -> dict[str, TierStats]:
        """Return what each tier has done and holds, by name, nearest first."""
        return {level.name: level.tier.stats() for level in self._levels}

    def start(self, errand: Errand) -> None:
        """Begin an errand. `poll` will answer it exactly once."""
        if errand.id in self._jobs or any(answer.id == errand.id for answer in self._answers):
            return  # the plan came twice
        job = _Job(errand, self._clock())
        self._jobs[errand.id] = job
        if isinstance(errand, Clear):
            # Weights may have changed. What is stored from now on is for this engine alone: others that share a store,
            # and the next one that is started here, have the weights that the namespace names (F9).
            self._salt = self._new_salt()
            self._clears.begin()
            job.hits.add(0)
        self._clears.ask(self._next_ticket)  # before a put, which it would undo
        if not isinstance(errand, Clear):
            own = self._share.of_names(errand.names)
            job.hits = set(range(len(errand.names))).difference(own)
            self._ask_tiers(job, own)
        self._end_if_done(job)

    def _ask_tiers(self, job: _Job, own: Sequence[int]) -> None:
        errand = job.errand
        if isinstance(errand, Fetch):
            self._descend(job, errand)
        elif isinstance(errand, Lookup) and own:
            keys = [tier_key(errand.names[position], self._salt) for position in own]
            for index, level in enumerate(self._levels):
                self._call(job, index, own, level.tier.lookup, keys)
        elif isinstance(errand, Sink) and own:
            held = zip(own, self._places.held([errand.slots[at] for at in own]), strict=True)
            items = [
                (at, Item(tier_key(errand.names[at], self._salt), block)) for at, block in held if block is not None
            ]
            for index, level in enumerate(self._levels):
                if items and level.wants(errand):
                    self._call(job, index, [at for at, _ in items], level.tier.put, [item for _, item in items])

    def poll(self) -> tuple[tuple[Answer, ...], tuple[int, ...]]:
        """Return the answers since the last call, and the fetches that have become late. Does not block."""
        self._listen()
        answers, self._answers = tuple(self._answers), []
        late, self._late = tuple(self._late), []
        return answers, late

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until one of these errands is over or late, at most `timeout_s`. Returns False if time ran out."""
        waited = [id_ for id_ in ids if id_ in self._jobs]
        end_s = self._clock() + timeout_s
        while waited and not self._answers and not self._late:
            left_s = end_s - self._clock()
            if left_s <= 0:
                return False
            self._listen()
            if not self._answers and not self._late:
                self._levels[self._nearest_busy(waited)].tier.wait(min(left_s, _POLL_S))
        return True

    def _nearest_busy(self, ids: Iterable[int]) -> int:
        """Return the nearest level that has calls of these errands under way.

        Several tiers cannot be waited for at a time, and one that has nothing to do would not wait at all.
        """
        tickets = (ticket for id_ in ids if id_ in self._jobs for ticket in self._jobs[id_].tickets)
        return min((self._calls[ticket].level for ticket in tickets), default=0)

    def tell(self, answered: Callable[[], None]) -> None:
        """Learn whom to tell, from any thread, that there may be something to poll. See `Tier.tell`."""
        for level in self._levels:
            level.tier.tell(answered)

    @property
    def busy(self) -> bool:
        """Whether something is under way, so that it has to be polled now and then: deadlines pass in silence."""
        return bool(self._jobs or self._answers or self._clears.under_way)

    def knows(self, id_: int) -> bool:
        """Whether an errand is under way."""
        return id_ in self._jobs

    def close(self, timeout_s: float = 5.0) -> bool:
        """Close all tiers. Returns whether nothing touches host memory any more. May be called again."""
        self._closes = True
        end_s = self._clock() + timeout_s
        self._let_clears_end(end_s - timeout_s / 2)
        closed = [level.tier.close(max(0.0, end_s - self._clock())) for level in self._levels]
        self._listen()
        return all(closed)

    def _let_clears_end(self, end_s: float) -> None:
        """Wait for clears under way: a tier that closes gives up what it has not begun, and would not be empty (F9)."""
        while self._clears.under_way and self._clock() < end_s:
            self._levels[self._clears.under_way[0]].tier.wait(_POLL_S)
            self._listen()

    # ------------------------------------------------------------------ inside

    def _listen(self) -> None:
        for index, level in enumerate(self._levels):
            for ticket, results in level.tier.poll():
                self._progress_s[index] = self._clock()
                self._clears.hear(index, ticket, results)
                self._hear(ticket, results)
        self._look_at_the_clock()

    def _next_ticket(self) -> int:
        self._last_ticket += 1
        return self._last_ticket

    def _call(
        self,
        job: _Job,
        level: int,
        positions: Iterable[int],
        call: Callable[[int, Sequence[T]], bool],
        work: Sequence[T],
    ) -> None:
        """Make a call; a tier that refuses it has nothing."""
        ticket = self._next_ticket()
        if call(ticket, work):
            job.tickets.add(ticket)
            self._calls[ticket] = _Call(job, level, tuple(positions))

    def _descend(self, job: _Job, fetch: Fetch) -> None:
        """Ask the next tier for what has not come, until one takes the calls or there is none.

        A tier is asked for all forms before the next one is: it has a block in one of them.
        """
        while job.level < len(self._levels) and not job.tickets:
            tier = self._levels[job.level].tier
            missing = [position for position in range(len(fetch.slots)) if position not in job.hits]
            if not missing:
                return
            wanted = self._wanted(fetch, missing, job.form)
            per_call = max(1, self._call_bytes_max // max(1, wanted[0][1].buffer.nbytes)) if wanted else 1
            for first in range(0, len(wanted), per_call):
                positions, items = zip(*wanted[first : first + per_call], strict=True)
                self._call(job, job.level, positions, tier.get, items)
            if not job.tickets:
                self._go_on(job)

    def _wanted(self, fetch: Fetch, positions: Sequence[int], form: int) -> list[tuple[int, Item]]:
        """Return what is to be brought in this form, and where to, as far as there is a place."""
        offered = zip(positions, self._places.offered([fetch.slots[at] for at in positions], form), strict=True)
        return [(at, Item(tier_key(fetch.names[at], self._salt), to)) for at, to in offered if to is not None]

    def _go_on(self, job: _Job) -> None:
        """Look for another form, or in the next tier."""
        job.form += 1
        if job.form == self._places.forms:
            job.form, job.level = 0, job.level + 1

    def _hear(self, ticket: int, results: tuple[KeyResult, ...]) -> None:
        call = self._calls.pop(ticket, None)
        if call is None:
            return  # a clear, or of a lookup that was answered without it
        job = call.job
        job.tickets.discard(ticket)
        hits = [at for at, result in zip(call.positions, results, strict=True) if result.verdict is Verdict.HIT]
        job.hits.update(hits)
        if isinstance(job.errand, Fetch):
            self._places.arrived(len(hits), job.form)
            if not job.tickets and not self._closes:
                self._go_on(job)
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
        if isinstance(errand, Fetch):
            self._places.missed(slot for at, slot in enumerate(errand.slots) if at not in job.hits)
        self._answers.append(Answer(errand.id, tuple(sorted(job.hits)), self._clock() - job.begun_s))

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
