"""I6 below host memory: what the tiers want is there, or its loss is counted once, under a reason, and nothing else is.

Written through, a block is wanted below when it is stored, or when it is loaded for the first time; written on evict,
when it leaves the host. Each of these is compared with how far queue and counters move in the same call.
"""

from __future__ import annotations

from collections import deque

from kvtide.core.messages import Clear, Outcome, Plan, Sink
from kvtide.sim.attention import first_blocks
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World


class SinkingChecker(Checker):
    """Knows of each visible block whether it was of use, and whether it is below or counted as lost."""

    invariant = "I6"

    @classmethod
    def concerns(cls, world: World) -> bool:
        """Only where there is something below the host."""
        return world.tier is not None

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        assert world.tier is not None
        self._through, self._on_evict = world.tier.through, world.tier.on_evict
        self._used: set[int] = set()
        self._done_through: set[int] = set()
        self._done_leaving: set[int] = set()
        self._waiting: set[int] = set()
        """Contents that are queued to sink."""
        self._entries: deque[tuple[int, int]] = deque()
        """The queue: contents and their slots, also of those that have left the host since."""
        self._waited = 0
        """How many of them were on the host when the reset came."""
        self._counted = 0
        self._queue = 0
        self._sunk = 0
        self._stored: list[int] = []
        """Contents that were stored since the last look."""
        self._lost_by_eviction = 0
        """What the evictions since the last look have lost."""
        self._clear_due = False

    # ------------------------------------------------------------------ what happens on the host

    def stored(self, contents: list[int]) -> None:
        """Tell what was stored from what has come up."""
        observed = self.observed
        for content in contents:
            if observed.flights[observed.writing[content]].is_store:
                self._stored.append(content)
            else:
                self._done_through.add(content)
                self._done_leaving.add(content)

    def removed(self, contents: list[int]) -> None:
        """What leaves the host, and is wanted below and not there, is lost."""
        for content in contents:
            used = content in self._used
            for wanted, below in ((self._through, self._done_through), (self._on_evict, self._done_leaving)):
                if content not in below and ("all" in wanted or (used and wanted)):
                    self._lost_by_eviction += 1
            self._forget(content)

    def _forget(self, content: int) -> None:
        for contents in (self._used, self._done_through, self._done_leaving, self._waiting):
            contents.discard(content)

    # ------------------------------------------------------------------ calls that count

    def _move(self) -> tuple[int, int]:
        """Return how much was counted as lost, and how much the queue has grown, since the last look."""
        counted = sum(self.manager.metrics.not_sunk.values())
        queue = self.observed.gauges.sink_queue_blocks
        moved = counted - self._counted, queue - self._queue
        self._counted, self._queue = counted, queue
        return moved

    def _enqueued(self, contents: list[int], queued: int) -> None:
        """The first of some contents were queued, until there was no room. The others were counted."""
        for content in contents[:queued]:
            self._waiting.add(content)
            self._entries.append((content, self.observed.visible[content]))
        self._done_through.update(contents[queued:])

    def _expect_lost(self, expected: int, when: str) -> None:
        lost, _ = self._move()
        if lost != expected:
            raise Violation("I6", f"{expected} blocks do not sink because {when}, and {lost} are counted")

    def _evictions(self) -> int:
        lost, self._lost_by_eviction = self._lost_by_eviction, 0
        return lost

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """Slots may have been taken for what the request leaves."""
        self._expect_lost(self._evictions(), f"{request.id} ends")

    def admitted(self, request: SimRequest, loading: bool, accepted: int) -> None:
        """Blocks that are loaded for the first time are wanted below by some tiers."""
        if not loading or "second-use" not in self._through | self._on_evict:
            return
        first_time = [content for content in self._loaded(request) if content not in self._used]
        self._used.update(first_time)
        wanted = len(first_time) if "second-use" in self._through else 0
        self.observed.gauges = self.manager.gauges()
        lost, queued = self._move()
        if lost + queued != wanted:
            raise Violation(
                "I6", f"{wanted} blocks are of use for the first time; {queued} are queued to sink and {lost} counted"
            )
        self._enqueued(first_time[:wanted], queued)

    def _loaded(self, request: SimRequest) -> list[int]:
        """Return what resuming needs beyond the device, if all of it is there."""
        observed, boundary = self.observed, request.resume_at
        contents = []
        for index, group in enumerate(self.world.told_groups):
            size = group.block_tokens
            first = max(first_blocks(group)[boundary], request.device_tokens // size)
            for block in range(first, -(-boundary // size)):
                if block >= len(request.keys[index]):
                    return []
                content = observed.stamp_of(index, request.keys[index][block])
                if content not in observed.visible:
                    return []
                contents.append(content)
        return contents

    def reported(self, outcome: Outcome) -> None:
        """Blocks were stored, and errands have ended."""
        failed = void = 0
        for flight in self.observed.settled:
            if flight.kind != "sink":
                continue
            if flight.orphaned:
                void += len(flight.slots)
                continue
            failed += len(flight.missed)
            self._sunk += len(flight.slots) - len(flight.missed)
            if not flight.leaving:
                self._done_through.update(flight.stamps)
        stored, self._stored = self._stored if "all" in self._through else [], []
        wanted = len(stored)
        lost, queued = self._move()
        if lost + queued != wanted + failed + void or self.manager.metrics.sunk_blocks != self._sunk:
            raise Violation(
                "I6",
                f"{wanted} blocks are to sink, {failed} have not and {void} have in vain; {queued} are queued and "
                f"{lost} counted; {self._sunk} have sunk so far and {self.manager.metrics.sunk_blocks} are counted",
            )
        self._enqueued(stored, queued)

    # ------------------------------------------------------------------ plans and resets

    def planned(self, flight: Flight) -> None:
        """What begins to sink waits no longer."""
        if flight.kind == "sink":
            self._waiting.difference_update(flight.stamps)

    def plan_made(self, plan: Plan) -> None:
        """Slots were taken for what the plan begins. What has left the queue sinks, is below, or has left the host."""
        self._check_clear(plan)
        lost = self._evictions()
        # What sinks when it leaves is lost only to tiers that are written through.
        lost -= sum(len(errand.slots) for errand in plan.errands if isinstance(errand, Sink) and errand.leaving)
        self._expect_lost(lost, "slots were needed")
        while len(self._entries) > self._queue:
            self._entries.popleft()
        if not self._queue:
            silent = self._waiting - self._done_through
            if silent:
                what = self.observed.tokens.describe(min(silent))
                raise Violation("I6", f"{what} was to sink, is on the host, and does not wait any more")
            self._waiting.clear()

    def _check_clear(self, plan: Plan) -> None:
        """After a reset the tiers are emptied, once, before anything else is asked of them."""
        clears = [position for position, errand in enumerate(plan.errands) if isinstance(errand, Clear)]
        if clears != ([0] if self._clear_due else []):
            when = "after" if self._clear_due else "without"
            raise Violation("I8", f"{when} a reset, the plan empties the tiers at {clears} among its errands")
        self._clear_due = False

    def before_reset(self) -> None:
        """Those that have left the host were counted when they did."""
        visible = self.observed.visible
        self._waited = sum(visible.get(content) == slot for content, slot in self._entries)

    def after_reset(self, below: bool) -> None:
        """All that waited to sink is lost, and nothing that is below is of use."""
        lost, _ = self._move()
        if lost != self._waited:
            raise Violation("I6", f"{self._waited} blocks were waiting to sink at the reset, and {lost} are counted")
        self._entries.clear()
        for contents in (self._used, self._done_through, self._done_leaving, self._waiting):
            contents.clear()
        self._stored.clear()
        self._lost_by_eviction = 0
        self._clear_due = self._clear_due or below
