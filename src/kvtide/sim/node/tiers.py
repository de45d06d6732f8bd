"""Tiers below one namespace of a simulated node: the real stacks and what drives them, on simulated tiers.

What the tiers hold outlives the node: the next one finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kvtide.core.config import OffloadConfig
from kvtide.core.index.shared import SharedIndex
from kvtide.core.messages import Errand, Fetch
from kvtide.node.tiers.space_tiers import SpaceTiers
from kvtide.sim.below import DEADLINE_TICKS, TierWorld
from kvtide.sim.clock import TICK_S
from kvtide.sim.node.arena import WEIGHTS_OF_MODEL, Arena, Name
from kvtide.sim.node.books import Books
from kvtide.sim.rank import CALL_SLOTS_MAX
from kvtide.sim.run import Run
from kvtide.sim.tier import SimTier
from kvtide.sim.violation import Violation
from kvtide.sim.warm import contents_of
from kvtide.tiers.base import TierKey
from kvtide.tiers.stack import Level, TierStack, tier_key

OPENING_TICKS_MAX = 20
"""How long tiers take to be opened."""
BUSY_TICKS = 2
"""While something is under way, deadlines are looked at so often."""

Kept = dict[tuple[Name, int, int], dict[TierKey, int]]
"""What tiers have kept: by namespace, part and level."""


def with_tiers(config: OffloadConfig, tier: TierWorld) -> OffloadConfig:
    """Return the configuration of an index above tiers."""
    return replace(config, below=tier.config(), min_fetch_tokens=tier.min_fetch_tokens)


class NodeStack(TierStack):
    """Looks at what it is told to write to."""

    arena: Arena
    books: Books

    def start(self, errand: Errand) -> None:
        """Begin an errand. Nobody may have leased what a fetch writes to, nor write there (I10, I11)."""
        if isinstance(errand, Fetch):
            places = [(self.arena, slot) for slot in errand.slots]
            for life, (_, slot) in self.books.lessees(places):
                raise Violation("I11", f"a fetch writes slot {slot}, and life {life} has leased it")
            for place in places:
                if (writer := self.books.slot_writers.get(place)) is not None:
                    raise Violation("I10", f"a fetch writes slot {place[1]}, and so may {writer}")
        super().start(errand)


class NodeTiers:
    """The tiers of one namespace, for one life of the node."""

    def __init__(
        self,
        run: Run,
        world: TierWorld,
        index: SharedIndex,
        arena: Arena,
        *,
        kept: Kept,
        books: Books,
        hang_ticks_left: Callable[[], int],
        after: Callable[[], None],
    ) -> None:
        """`after` is called whenever something may have come up, or has not; `hang_ticks_left`: of the node."""
        self._run = run
        self._world = world
        self._arena = arena
        self._kept = kept
        self._books = books
        self._hang_ticks_left = hang_ticks_left
        self._after = after
        self._is_due = False
        self._views = [[memoryview(part)[slot : slot + 1] for slot in range(len(part))] for part in arena.parts]
        self.tiers: list[list[SimTier]] = []
        self.space = SpaceTiers(index, len(arena.parts), DEADLINE_TICKS * TICK_S)
        run.clock.after(run.tier_draw.between(1, OPENING_TICKS_MAX), self._open, None)

    def due(self) -> None:
        """Look soon whether there is something to do."""
        if not self._is_due:
            self._is_due = True
            self._run.clock.after(1, self._drive, None)

    def check_unused(self, slots: list[int], what: str) -> None:
        """No tier may read or write these (I10)."""
        for tiers, views in zip(self.tiers, self._views, strict=False):
            for slot in slots:
                if any(tier.uses(views[slot]) for tier in tiers):
                    raise Violation("I10", f"{what} slot {slot}, and a tier has not done with it")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.space.busy and not self.space.sinking_blocks

    def _drive(self, _: object) -> None:
        self._is_due = False
        if self._arena.is_over:
            return
        if ticks := self._hang_ticks_left():
            self._is_due = True
            self._run.clock.after(ticks, self._drive, None)
            return
        if self.space.drive(self._run.clock.now * TICK_S):
            self.due()
        elif self.space.time_counts and not self._is_due:
            self._is_due = True
            self._run.clock.after(BUSY_TICKS, self._drive, None)
        self._after()

    def _open(self, _: object) -> None:
        if ticks := self._hang_ticks_left():
            self._run.clock.after(ticks, self._open, None)
        elif not self._arena.is_over:
            self.space.opened([self._stack(part, list(self._levels(part))) for part in range(len(self._views))])
            self.due()

    def _levels(self, part: int) -> Iterator[Level]:
        self.tiers.append([])
        for index, (write, admit) in enumerate(self._world.levels):
            tier = SimTier(self._run, self._world, self.due)
            place = self._arena.namespace, part, index
            if place not in self._kept:
                contents = contents_of(self._run.world, WEIGHTS_OF_MODEL * self._arena.namespace[0])
                tier.warm_up((tier_key(name), content) for name, content in contents.items())
                self._kept[place] = tier.records
            tier.records = self._kept[place]
            self.tiers[-1].append(tier)
            yield Level(tier, DEADLINE_TICKS * TICK_S, write, admit)

    def _stack(self, part: int, levels: list[Level]) -> NodeStack:
        views = self._views[part]
        clock = self._run.clock
        stack = NodeStack(
            levels, views.__getitem__, clock=lambda: clock.now * TICK_S, call_bytes_max=CALL_SLOTS_MAX * len(views[0])
        )
        stack.arena, stack.books = self._arena, self._books
        return stack
