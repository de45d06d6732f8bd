"""I6 in lazy mode: what the device is about to evict is stored, unless something is in the way.

After a plan the first blocks of the free queue, as many as the next steps may allocate, hold nothing that is not on the
host or on its way there. In the way are: the pin budget and a host that is full of what is in use (so this is looked at
when nothing is in flight), a store of the same content since the engine last computed something, a copy that failed,
a rank that does not say what became of a copy, and a host that has evicted it again. And nothing is pinned while pins
seem to keep all requests from getting further.
"""

from __future__ import annotations

from kvtide.core.messages import Outcome, Plan
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

LOOKAHEAD_STEPS = 2
CLEAN_SHARE = 4
"""And at least this part of the device."""
PREEMPTIONS_MAX = 4
"""The core counts less than all of them."""


class LazyChecker(Checker):
    """Walks the free queue of the simulated engine for itself."""

    invariant = "I6"

    @classmethod
    def concerns(cls, world: World) -> bool:
        """Eager mode has completeness of another kind, and what is not admitted is not stored."""
        return world.mode == "lazy" and world.admission == "all"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._step_blocks = sum(-(-world.step_tokens // group.block_tokens) for group in world.groups)
        self._loading_blocks_max = 0
        self._frees_ahead = world.tier is not None and bool(world.tier.on_evict)
        """Whether slots become free at the end of a plan, when stores have been decided about."""
        self._tried: set[int] = set()
        self._given_up: set[int] = set()
        self._looked_at: tuple[int, int, int] | None = None
        self._furthest_tokens: dict[str, int] = {}
        self._preemptions = 0
        self._makes_way = False

    def advanced(self, request: SimRequest, computed_tokens: int) -> None:
        """Everything may be tried again."""
        self._tried.clear()
        if computed_tokens > self._furthest_tokens.get(request.id, 0):
            self._furthest_tokens[request.id] = computed_tokens
            self._preemptions = 0

    def before_end(self, request: SimRequest, preempted: bool) -> None:
        """Count preemptions that may be the fault of pins."""
        if preempted:
            self._preemptions += self.manager.gauges().store_pins > 0
            self._makes_way |= self._preemptions == PREEMPTIONS_MAX
        else:
            self._furthest_tokens.pop(request.id, None)
            self._preemptions, self._makes_way = 0, False

    def planned(self, flight: Flight) -> None:
        """Remember what is being tried."""
        if flight.is_store:
            self._tried.update(flight.stamps)

    def removed(self, contents: list[int]) -> None:
        """Remember what the host has given up: behind the point up to which the queue was looked at, it is lost."""
        self._given_up.update(contents)

    def reported(self, outcome: Outcome) -> None:
        """The same holds for a store that failed as often as it is tried: it was looked at as long as that went on."""
        for flight in self.observed.settled:
            if flight.is_store:
                lost = range(len(flight.stamps)) if flight.failed else flight.missed
                self._given_up.update(flight.stamps[position] for position in lost)

    def plan_made(self, plan: Plan) -> None:
        """Look at the queue, if nothing is in the way."""
        self._loading_blocks_max = max(self._loading_blocks_max, sum(len(load.blocks) for load in plan.loads))
        gauges = self.observed.gauges
        if gauges.store_pins or gauges.slots_pinned or gauges.backlog_blocks or not gauges.slots:
            return
        if self.observed.overdue or self.observed.stopped or self._makes_way:
            return
        self._check_if_changed()

    def at_rest(self) -> None:
        """The engine would not make another plan: this must be the state after the last one."""
        gauges = self.manager.gauges()
        if gauges.slots and not self.observed.stopped:
            self.observed.gauges = gauges
            self._check_queue()

    def _check_if_changed(self) -> None:
        looked_at = (self.pool.changes, self.pool.num_free, len(self._tried))
        if looked_at != self._looked_at:
            self._looked_at = looked_at
            self._check_queue()

    def _check_queue(self) -> None:
        observed, world = self.observed, self.world
        target = LOOKAHEAD_STEPS * (self._step_blocks + self._loading_blocks_max)
        target = max(target, world.device_blocks // CLEAN_SHARE)
        waiting: set[int] = set()
        for content in self.pool.next_victims(min(world.device_blocks, world.host_slots, target)):
            held = observed.stamp_of(content.group, content.key)
            if held in observed.visible or held in observed.writing:
                continue
            waiting.add(held)
            if len(waiting) > world.pin_budget:
                return  # only so many are looked at in one plan, be there room for them or not
            if held not in self._tried and held not in self._given_up and self._has_room_for(held):
                what = observed.tokens.describe(held)
                raise Violation("I6", f"{what} is about to be evicted from the device, and nobody stores it")

    def _has_room_for(self, content: int) -> bool:
        """Whether a slot is free, or holds something that the content does not continue."""
        observed = self.observed
        if observed.gauges.slots_free and not self._frees_ahead:
            return True
        before = set(observed.before(content))
        return any(visible not in before for visible in observed.visible)
