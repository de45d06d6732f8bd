"""I5 for host slots: free + cached + pinned = total. When nothing runs, nothing is pinned."""

from __future__ import annotations

from kvtide.core.messages import Plan
from kvtide.core.metrics import Gauges
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.violation import Violation
from kvtide.sim.world import World


class ConservationChecker(Checker):
    """Compares slots with the transfers it has seen."""

    invariant = "I5"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._slots_allowed = 0
        """As many slots every rank had when somebody last looked."""
        self._zombies: set[int] = set()
        """Slots that were visible before a reset and are still being read."""

    def before_reset(self) -> None:
        """Slots that are being read stay in use although their keys are forgotten."""
        read, sinking = self.observed.slots_read, self.observed.slots_sinking
        self._zombies.update(slot for slot in self.observed.visible.values() if slot in read or slot in sinking)

    def planned(self, flight: Flight) -> None:
        """The same holds for a load that was admitted before the reset and planned after it."""
        if flight.kind == "load" and flight.orphaned:
            self._zombies.update(flight.slots)

    def plan_made(self, plan: Plan) -> None:
        """Right after a plan, every slot that is being written belongs to a transfer in flight."""
        observed = self.observed
        gauges = observed.gauges
        if self._zombies:
            self._zombies = {
                slot for slot in self._zombies if slot in observed.slots_read or slot in observed.slots_sinking
            }
        writing = len(observed.slots_written) + len(self._zombies) + observed.slots_leaving
        # Stores from before a reset may keep parents of what they store, which nobody outside can see.
        kept = observed.epoch and sum(
            len(flight.slots) for flight in observed.flights.values() if flight.orphaned and flight.is_store
        )
        if not writing <= gauges.slots_writing <= writing + kept:
            raise Violation("I5", f"{gauges.slots_writing} slots are neither free nor cached and {writing} are in use")
        self._check_slots(gauges)

    def _check_slots(self, gauges: Gauges) -> None:
        observed = self.observed
        if gauges.slots_free + gauges.slots_cached + gauges.slots_writing != gauges.slots:
            raise Violation("I5", f"slots do not add up: {gauges}")
        if gauges.slots > self._slots_allowed:
            self._slots_allowed = min(rank.slots_ready for rank in self.ranks)
        if gauges.slots > self._slots_allowed:
            raise Violation("I5", f"{gauges.slots} slots are in use, and some rank does not have as many yet")
        if gauges.slots_pinned < len(observed.slots_read):
            raise Violation("I2", f"{gauges.slots_pinned} slots are pinned and {len(observed.slots_read)} are read")

    def at_end(self, slots_taken: int) -> None:
        """No slot is lost for ever: when nothing is pinned, all of them can be had."""
        slots = self.manager.gauges().slots
        if slots_taken != slots:
            raise Violation("I5", f"nothing is pinned, and of {slots} slots {slots_taken} can be had")

    def at_rest(self) -> None:
        """Everything has come back."""
        gauges = self.manager.gauges()
        if gauges.sink_queue_blocks or gauges.searches:
            raise Violation("I5", f"blocks wait to sink, or requests search, when nothing runs: {gauges}")
        if gauges.slots_pinned or gauges.slots_writing:
            raise Violation("I5", f"slots are held when nothing runs: {gauges}")
