"""I5 for device blocks: who refers to a block returns it, once. When nothing runs, nothing is pinned."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.messages import Plan
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.violation import Violation
from kvtide.sim.world import World


class ReferencesChecker(Checker):
    """Counts references to device blocks for itself, and compares pins with the transfers it has seen."""

    invariant = "I5"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._refs = [0] * (world.device_blocks + 1)
        self._pins = observed.pins
        self._pins_total = 0

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

    def plan_made(self, plan: Plan) -> None:
        """Right after a plan, everything that is pinned belongs to a transfer in flight, or to what it has asked for.

        The latter in lazy mode only: the device is about to take those blocks.
        """
        observed = self.observed
        gauges = observed.gauges
        stores = observed.slots_stored
        loads = sum(observed.slots_read.values())
        asked = observed.asked_blocks if self.world.mode == "lazy" else 0
        observed.asked_blocks = 0
        if self._pins_total != gauges.store_pins + loads:
            counted = f"{gauges.store_pins} are counted for stores and {loads} for loads"
            raise Violation("I5", f"{self._pins_total} pins on device blocks, of which {counted}")
        if not stores <= gauges.store_pins <= stores + asked:
            what = f"{stores} blocks are being stored, and slots were asked for {asked}"
            raise Violation("I5", f"{gauges.store_pins} store pins are counted: {what}")
        if gauges.transfers + gauges.transfers_unanswered != len(observed.flights):
            raise Violation("I5", f"{len(observed.flights)} transfers are in flight, which is not so in {gauges}")
        if gauges.transfers_unanswered != len(observed.overdue):
            raise Violation("I5", f"{len(observed.overdue)} transfers are overdue, which is not so in {gauges}")

    def at_rest(self) -> None:
        """Everything has come back."""
        gauges = self.manager.gauges()
        if any(self._refs) or any(self._pins):
            held = [block for block, refs in enumerate(self._refs) if refs or self._pins[block]]
            raise Violation("I5", f"device blocks {held} are still held when nothing runs")
        if gauges.store_pins or gauges.backlog_blocks:
            raise Violation("I5", f"blocks are held, or wait to be stored, when nothing runs: {gauges}")
