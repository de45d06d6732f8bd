"""I6: in eager mode every full block that was computed is stored, or its loss is counted under a reason.

While a request runs its blocks are safe on the device. They are due when it ends or is preempted: each block must
then be visible, on its way, begun, waiting for its turn, or counted as lost. Since counters have no keys, the
checker compares how many blocks became due between two plans with how much the counters have moved meanwhile.
"""

from __future__ import annotations

from kvtide.core.groups import NULL_BLOCK
from kvtide.core.reasons import NotStored
from kvtide.core.wire import Outcome, Plan
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

_APART = (NotStored.OUT_OF_WINDOW, NotStored.NO_KEY)
"""Reasons for blocks that a request does not have any more, or that have no key: they are not among the due ones."""


class CompletenessChecker(Checker):
    """Knows which blocks are due, and what the manager has done about how many."""

    invariant = "I6"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._eager = world.mode == "eager"
        self._due_since_plan: dict[int, None] = {}
        self._handled_since_plan = 0
        self._before = 0
        self._due: list[int] = []
        self._missed: dict[int, None] = {}
        """Contents that have been due, and not visible since."""
        self._gone: dict[str, dict[int, None]] = {}
        """Per request: contents that left the window before anyone stored them."""
        self._gone_total = 0
        self._tried: set[int] = set()
        """Contents of all stores so far. What becomes of each is checked when it ends."""
        self._unsuccessful_blocks = 0
        self._unkept_blocks = 0
        """Blocks of fetches that did not bring everything, or not to a host that still wants it."""
        self._backlog = 0

    # ------------------------------------------------------------------ when requests end

    def before_end(self, request: SimRequest, preempted: bool) -> None:
        """Read the counters, and see what is not on the host: what is evicted meanwhile had been stored."""
        if self._eager:
            self._before = self._handled()
            self._due = [
                content for content in self._computed(request, preempted) if content not in self.observed.visible
            ]

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """Compare what is due with what was done about it."""
        if self.world.admission == "all" and self.manager.metrics.not_stored[NotStored.NOT_ADMITTED]:
            raise Violation("I6", f"all blocks are to be stored, and one is kept out when {request.id} ends")
        if not self._eager:
            return
        self._handled_since_plan += self._handled() - self._before
        for content in self._due:
            self._missed[content] = None
            if content not in self.observed.writing:
                self._due_since_plan[content] = None
        if len(self._due_since_plan) > self._handled_since_plan:
            raise Violation(
                "I6",
                f"{len(self._due_since_plan)} blocks are due when {request.id} ends, and "
                f"{self._handled_since_plan} are begun, waiting or counted as lost",
            )
        self._check_gone(request, preempted)

    def _computed(self, request: SimRequest, preempted: bool) -> list[int]:
        """Return the contents that were computed for a request, with keys, as far as kvtide was told.

        A preempted request may have lost its blocks already; what has left the window of a finished one is
        looked at elsewhere.
        """
        computed = self.observed.computed[request.id]
        due: list[int] = []
        if request.epoch != self.observed.epoch:
            return due
        for index, group in enumerate(self.world.groups):
            full = min(computed // group.block_tokens, len(request.keys[index]))
            table, stamps = request.tables[index], request.stamps[index] if request.stamps else []
            due += [
                stamps[block]
                for block in range(full)
                if preempted or (block < len(table) and table[block] != NULL_BLOCK)
            ]
        return due

    def _handled(self) -> int:
        gauges = self.manager.gauges()
        return gauges.store_pins + gauges.backlog_blocks + self._lost(apart=False)

    def _lost(self, *, apart: bool) -> int:
        counts = self.manager.metrics.not_stored
        return sum(count for why, count in counts.items() if (why in _APART) == apart)

    # ------------------------------------------------------------------ windows

    def slid(self, request: SimRequest, group: int, block: int) -> None:
        """A block that nobody has stored leaves its window."""
        if not self._eager or request.epoch != self.observed.epoch:
            return
        content = request.stamps[group][block]
        if content not in self._tried and self.observed.tokens_of(content) <= request.keyed_tokens:
            self._gone.setdefault(request.id, {})[content] = None

    def _check_gone(self, request: SimRequest, preempted: bool) -> None:
        gone = self._gone.pop(request.id, {})
        if preempted or not gone:
            return
        computed = self.observed.computed[request.id]
        self._gone_total += sum(
            content not in self._due_since_plan and self.observed.tokens_of(content) <= computed for content in gone
        )
        counts = self.manager.metrics.not_stored
        counted = counts[NotStored.OUT_OF_WINDOW] + counts[NotStored.NOT_ADMITTED]
        if self._gone_total > counted:
            raise Violation(
                "I6", f"{self._gone_total} blocks left their window unstored, and {counted} are counted as such"
            )

    # ------------------------------------------------------------------ when stores end

    def stored(self, contents: list[int]) -> None:
        """What is visible is not missed any more."""
        for content in contents:
            self._missed.pop(content, None)

    def planned(self, flight: Flight) -> None:
        """What anyone stores is not gone: if that fails, it is tried again or counted."""
        if flight.writes_host:
            self._tried.update(flight.stamps)
            for gone in self._gone.values():
                for content in flight.stamps:
                    gone.pop(content, None)

    def before_report(self) -> None:
        """Count the blocks of stores that came to nothing."""
        self._unsuccessful_blocks = sum(
            len(flight.blocks)
            for flight in self.observed.settled
            if flight.is_store and (flight.failed or flight.orphaned)
        )
        self._unkept_blocks = sum(
            len(flight.slots)
            for flight in self.observed.settled
            if flight.kind == "fetch" and (flight.missed or flight.orphaned)
        )
        if self._unsuccessful_blocks:
            self._before = self.manager.gauges().backlog_blocks + self._lost(apart=False)

    def reported(self, outcome: Outcome) -> None:
        """Each of them must be tried again or counted as lost. This holds in lazy mode too."""
        if self._unsuccessful_blocks and self.observed.settled:
            after = self.manager.gauges().backlog_blocks + self._lost(apart=False)
            handled = after - self._before
            # Computed blocks that were to come up and did not are stored after all, or lost to a reset.
            if not 0 <= handled - self._unsuccessful_blocks <= self._unkept_blocks:
                raise Violation(
                    "I6",
                    f"stores of {self._unsuccessful_blocks} blocks came to nothing, and {handled} are "
                    f"waiting for another try or counted as lost",
                )

    # ------------------------------------------------------------------ plans, resets, the end

    def plan_made(self, plan: Plan) -> None:
        """From here on, what was begun is in flight, and known by its content."""
        self._due_since_plan.clear()
        self._handled_since_plan = 0

    def before_reset(self) -> None:
        """What waits is lost."""
        self._backlog = self.manager.gauges().backlog_blocks
        self._before = self.manager.metrics.not_stored[NotStored.RESET]

    def after_reset(self) -> None:
        """All that was waiting must be counted. What is in flight is counted when it ends."""
        counted = self.manager.metrics.not_stored[NotStored.RESET] - self._before
        if counted < self._backlog:
            raise Violation("I6", f"{self._backlog} blocks were waiting at the reset, and {counted} are counted")
        self._due_since_plan.clear()
        self._handled_since_plan = 0
        self._missed.clear()
        self._gone.clear()

    def at_rest(self) -> None:
        """Of what was ever due, everything has been visible, or is counted."""
        lost = sum(self.manager.metrics.not_stored.values())
        if len(self._missed) > lost:
            raise Violation("I6", f"{len(self._missed)} blocks are not on the host, and {lost} are counted as lost")
