"""A simulated tier of one rank: slow, forgetful, lying, damaged, full, or out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvtide.sim.below import TierWorld
from kvtide.sim.clock import HANG_TICKS_MAX, TICK_S, TICKS_PER_STEP
from kvtide.sim.run import Run
from kvtide.sim.tokens import MOVING, TORN
from kvtide.tiers.base import HIT, MISS, CallResult, Item, KeyResult, Tier, TierKey, TierStats, Verdict

SLOW_TICKS_MAX = 20 * TICKS_PER_STEP
DEAD_TICKS_MAX = 40 * TICKS_PER_STEP
DEAD_FOR_GOOD = 32
"""How often in 256 a tier that dies never comes back."""
FETCH_IN_VAIN = 64
"""How often in 256 a fetch takes long and brings nothing, where engines do not wait for it."""
CLEAR_FAILS = 160
"""How often in 256 emptying a tier fails, where it often does."""

FAILED = KeyResult(Verdict.FAILED, "the tier failed")
THROTTLED = KeyResult(Verdict.THROTTLED, "the tier has too much to do")
DAMAGED = -3
"""The stamp of a record whose bytes are not what was put."""


@dataclass(slots=True, eq=False)
class Call:
    """One call, from when it was taken to its answer."""

    ticket: int
    end: Callable[[Call], Iterable[KeyResult]]
    """What the call does when its time has come."""
    keys: Sequence[TierKey] = ()
    items: Sequence[Item] = ()
    seen: tuple[int, ...] = ()
    """Put: what was in the slots when it began."""
    instead: KeyResult | None = None
    """What comes of it, if it does not do what was asked."""


class SimTier(Tier):
    """Keeps stamps by key. Calls take their time and end in any order."""

    def __init__(self, run: Run, world: TierWorld, has_news: Callable[[], None]) -> None:
        self.records: dict[TierKey, int] = {}
        self.answered_tick = 0
        """When somebody last heard of it."""
        self._world = world
        self._clock = run.clock
        self._draw = run.tier_draw
        self._fault_counts = run.fault_counts
        self._has_news = has_news
        self._calls: dict[int, Call] = {}
        self._busy_until = 0
        self._dead_until = 0
        self._closed = False
        self._results: list[CallResult] = []
        habits = run.world.habits
        self._fetch_in_vain = FETCH_IN_VAIN if habits.impatient else 0
        self._hangs = run.world.faults.silent_rank
        self._clear_fails = CLEAR_FAILS if habits.clears_fail else 0

    def warm_up(self, contents: Iterable[tuple[TierKey, int]]) -> None:
        """Put what others have left here. Each rank may have lost its own part."""
        self.records.update(entry for entry in contents if self._draw.chance(self._world.warm))

    def uses(self, slot: memoryview) -> bool:
        """Whether a call under way reads or writes the memory of a host slot."""
        return any(item.buffer is slot for call in self._calls.values() for item in call.items)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, and nothing to be heard of."""
        return not self._calls and not self._results

    # ------------------------------------------------------------------ the interface of tiers

    def lookup(self, ticket: int, keys: Sequence[TierKey]) -> bool:
        """Say which keys are there, and others sometimes."""
        return self._take(Call(ticket, self._find, keys))

    def put(self, ticket: int, items: Sequence[Item]) -> bool:
        """Keep stamps, if they do not change meanwhile."""
        return self._take(Call(ticket, self._keep, items=items, seen=tuple(item.buffer[0] for item in items)))

    def get(self, ticket: int, items: Sequence[Item]) -> bool:
        """Write what verifies to its slots; the others are left with whatever was written by then."""
        in_vain = self._draw.chance(self._fetch_in_vain)
        hangs = self._draw.chance(self._hangs)
        taken = self._take(Call(ticket, self._bring, items=items), in_vain=in_vain, hangs=hangs)
        for item in items if taken else ():
            item.buffer[0] = MOVING
        return taken

    def clear(self, ticket: int) -> bool:
        """Forget everything, after what was put before and has not ended."""
        call = Call(ticket, self._empty)
        if self._draw.chance(self._clear_fails):
            self._fault_counts["clear_fails"] += 1
            call.instead = FAILED
        return self._take(call, after_ticks=max(0, self._busy_until - self._clock.now))

    def poll(self) -> list[CallResult]:
        """Return what is over."""
        answers, self._results = self._results, []
        if answers:
            self.answered_tick = self._clock.now
        return answers

    def wait(self, timeout_s: float) -> bool:
        """Let virtual time pass until there is an answer: a tick at least, or nobody who waits would see an end."""
        end = self._clock.now + max(1, round(timeout_s / TICK_S))
        while not self._results and self._clock.now < end:
            self._clock.run_until_next(end - self._clock.now)
        return bool(self._results) or not self._calls

    def close(self, timeout_s: float = 5.0) -> bool:
        """Let what is under way come to its end."""
        self._closed = True
        end = self._clock.now + round(timeout_s / TICK_S)
        while self._calls and self._clock.now < end:
            self._clock.run_until_next(end - self._clock.now)
        return not self._calls

    def stats(self) -> TierStats:
        """Nobody reads them."""
        return TierStats()

    # ------------------------------------------------------------------ calls

    def _take(self, call: Call, *, in_vain: bool = False, hangs: bool = False, after_ticks: int = 0) -> bool:
        """Begin a call, unless there is no room for it."""
        if self._closed or self._happens("tier_full"):
            return False
        slow = self._happens("tier_slow") or in_vain
        ticks = self._draw.between(1, SLOW_TICKS_MAX if slow else TICKS_PER_STEP)
        if hangs:
            self._fault_counts["silent_rank"] += 1
            ticks = self._draw.between(SLOW_TICKS_MAX, HANG_TICKS_MAX)
        if self._happens("tier_fails") or in_vain or self._is_dead():
            call.instead = FAILED
        elif self._happens("tier_throttles"):
            call.instead = THROTTLED
        ticks += after_ticks
        self._busy_until = max(self._busy_until, self._clock.now + ticks)
        self._calls[call.ticket] = call
        self._clock.after(ticks, self._end, call)
        return True

    def _is_dead(self) -> bool:
        """Whether it is out of order: for a while, or for good."""
        now = self._clock.now
        if now >= self._dead_until and self._happens("tier_dies"):
            for_good = self._draw.chance(DEAD_FOR_GOOD)
            self._dead_until = 1 << 30 if for_good else now + self._draw.between(1, DEAD_TICKS_MAX)
        return now < self._dead_until

    def _end(self, call: Call) -> None:
        asked = len(call.keys) + len(call.items)
        instead = call.instead
        results = tuple(call.end(call)) if instead is None else (instead,) * (asked or 1)
        self._results.append(CallResult(call.ticket, results))
        del self._calls[call.ticket]
        self._has_news()

    def _find(self, call: Call) -> Iterable[KeyResult]:
        return [HIT if key in self.records or self._happens("tier_lies") else MISS for key in call.keys]

    def _bring(self, call: Call) -> Iterable[KeyResult]:
        for key, buffer in call.items:
            if self._happens("tier_forgets"):
                self.records.pop(key, None)
            content = self.records.get(key)
            if content is None or not self.verifies(content):
                yield MISS
                continue
            buffer[0] = content
            yield HIT

    def verifies(self, content: int) -> bool:
        """Whether a record is what was put (F8)."""
        return content != DAMAGED

    def _keep(self, call: Call) -> Iterable[KeyResult]:
        for (key, buffer), seen in zip(call.items, call.seen, strict=True):
            content = seen if buffer[0] == seen else TORN
            self.records[key] = DAMAGED if self._happens("tier_damage") else content
            while len(self.records) > self._world.records_max:
                del self.records[next(iter(self.records))]
            yield HIT

    def _empty(self, call: Call) -> Iterable[KeyResult]:
        self.records.clear()
        return (HIT,)

    def _happens(self, kind: str) -> bool:
        chance = getattr(self._world, kind)
        if not chance or not self._draw.chance(chance):
            return False
        self._fault_counts[kind] += 1
        return True
