"""I2: a host slot that a transfer uses is nobody else's until the transfer is over."""

from __future__ import annotations

from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.violation import Violation


class SlotsChecker(Checker):
    """Knows which slots are in use by transfers, from the plans and the reports, and which hold a visible key."""

    invariant = "I2"

    def planned(self, flight: Flight) -> None:
        """Slots must be free to be written, and hold the right key to be read."""
        observed = self.observed
        for slot, content in zip(flight.slots, flight.stamps, strict=True):
            if slot in observed.slots_written:
                raise Violation("I2", f"transfer {flight.id} uses slot {slot}, which is being written")
            if slot >= len(self.ranks[0].host):
                raise Violation("I2", f"transfer {flight.id} uses slot {slot}, which does not exist")
            self._check_slot(flight, slot, content)

    def _check_slot(self, flight: Flight, slot: int, content: int) -> None:
        observed = self.observed
        if flight.writes_host:
            if slot in observed.slots_read or slot in observed.slots_sinking:
                raise Violation("I2", f"{flight.kind} {flight.id} writes slot {slot}, which is being read")
            if slot in observed.slots_visible:
                raise Violation("I2", f"{flight.kind} {flight.id} writes slot {slot}, which holds a visible key")
        elif flight.leaving:
            self._check_leaving(flight, slot, content)
        elif observed.visible.get(content) != slot and not flight.orphaned:
            what = observed.tokens.describe(content)
            raise Violation("I2", f"{flight.kind} {flight.id} reads slot {slot}, which does not hold {what}")

    def _check_leaving(self, flight: Flight, slot: int, content: int) -> None:
        """A slot that was given up must still have its bytes, and be nobody else's."""
        if slot in self.observed.slots_visible or slot in self.observed.slots_read:
            raise Violation("I2", f"sink {flight.id} takes slot {slot} away from others")
        for rank in self.ranks:
            if rank.host[slot] != content:
                what = self.observed.tokens.describe(content)
                raise Violation("I2", f"sink {flight.id} reads slot {slot}, which does not hold {what}")

    def removed(self, contents: list[int]) -> None:
        """What is being read must not be evicted."""
        observed = self.observed
        if observed.slots_read or observed.slots_sinking:
            for content in contents:
                slot = observed.visible.get(content)
                if slot is not None and observed.is_read(slot):
                    raise Violation("I2", f"{observed.tokens.describe(content)} is evicted while it is read")
