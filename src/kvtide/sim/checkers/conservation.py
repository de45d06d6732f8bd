"""I5: free + cached + pinned = total, in both pools. When nothing runs, nothing is pinned."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.messages import Plan
from kvtide.core.metrics import Gauges
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.violation import Violation
from kvtide.sim.world import World


class ConservationChecker(Checker):
    """Counts references to device blocks for itself, and compares slots with the transfers it has seen."""

    invariant = "I5"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._refs = [0] * (world.device_blocks + 1)
        self._pins = observed.pins
        self._pins_total = 0
        self._slots_allowed = 0
        """As many slots every rank had when somebody last looked."""
        self._zombies: set[int] = set()
        """Slots that were visible before a reset and are still being read."""

    # ------------------------------------------------------------------ device blocks

    def allocated(self, blocks: Sequence[int]) -> None:
        """Blocks that are given out must be free."""
        for block in blocks:
            if self._refs[block] or self._pins[block]:
                raise Violation("I5", f"device block {block} is given out and not free")
            self._refs[block] = 1

    def taken(self, blocks: Sequence[int]) -> None:
        """Count."""
        for block in blocks:
            self._refs[block] += 1

    def freed(self, blocks: Sequence[int]) -> None:
        """Nobody may return what he does not have."""
        for block in blocks:
            if not self._refs[block]:
                raise Violation("I5", f"device block {block} is freed twice")
            self._refs[block] -= 1

    def pinned(self, blocks: Sequence[int]) -> None:
        """Count."""
        self._pins_total += len(blocks)
        for block in blocks:
            self._pins[block] += 1

    def unpinned(self, blocks: Sequence[int]) -> None:
        """Pins are returned exactly once."""
        self._pins_total -= len(blocks)
        for block in blocks:
            if not self._pins[block]:
                raise Violation("I5", f"device block {block} is unpinned more often than it was pinned")
            self._pins[block] -= 1

    # ------------------------------------------------------------------ host slots

    def before_reset(self) -> None:
        """Slots that are being read stay in use although their keys are forgotten."""
        read, sinking = self.observed.slots_read, self.observed.slots_sinking
        self._zombies.update(slot for slot in self.observed.visible.values() if slot in read or slot in sinking)

    def planned(self, flight: Flight) -> None:
        """The same holds for a load that was admitted before the reset and planned after it."""
        if flight.kind == "load" and flight.orphaned:
            self._zombies.update(flight.slots)

    def plan_made(self, plan: Plan) -> None:
        """Right after a plan, everything that is pinned or being written belongs to a transfer in flight."""
        observed = self.observed
        gauges = observed.gauges
        stores = observed.slots_stored
        loads = sum(observed.slots_read.values())
        if self._pins_total != stores + loads:
            raise Violation("I5", f"{self._pins_total} pins on device blocks for {stores + loads} that are in flight")
        if gauges.store_pins != stores:
            raise Violation("I5", f"{gauges.store_pins} store pins are counted and {stores} blocks are being stored")
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
        if gauges.transfers + gauges.transfers_unanswered != len(observed.flights):
            raise Violation("I5", f"{len(observed.flights)} transfers are in flight, which is not so in {gauges}")
        if gauges.transfers_unanswered != len(observed.overdue):
            raise Violation("I5", f"{len(observed.overdue)} transfers are overdue, which is not so in {gauges}")

    def at_end(self, slots_taken: int) -> None:
        """No slot is lost for ever: when nothing is pinned, all of them can be had."""
        slots = self.manager.gauges().slots
        if slots_taken != slots:
            raise Violation("I5", f"nothing is pinned, and of {slots} slots {slots_taken} can be had")

    def at_rest(self) -> None:
        """Everything has come back."""
        gauges = self.manager.gauges()
        if any(self._refs) or any(self._pins):
            held = [block for block, refs in enumerate(self._refs) if refs or self._pins[block]]
            raise Violation("I5", f"device blocks {held} are still held when nothing runs")
        if gauges.sink_queue_blocks or gauges.searches:
            raise Violation("I5", f"blocks wait to sink, or requests search, when nothing runs: {gauges}")
        if gauges.slots_pinned or gauges.store_pins or gauges.slots_writing or gauges.backlog_blocks:
            raise Violation("I5", f"slots are held when nothing runs: {gauges}")
