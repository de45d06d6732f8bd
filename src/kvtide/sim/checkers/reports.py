"""I8 for workers: each rank says of each transfer once that it is over, as soon as it is and not before.

Looked at where reports are made: on their way they may be lost, repeated or made up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtide.core.messages import Plan, Report
from kvtide.sim.below import DEADLINE_TICKS
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

if TYPE_CHECKING:
    from kvtide.sim.rank import Rank

COPIES = ("store", "load")


class ReportsChecker(Checker):
    """Knows what each worker was given, and sees what its copy engine and its tiers are at."""

    invariant = "I8"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._open: list[dict[int, Flight]] = [{} for _ in range(world.ranks)]
        """Per rank: what it was given and has not reported."""
        self._asked: list[set[int]] = [set() for _ in range(world.ranks)]
        """Per rank: what it was asked for since its last report."""
        self._late: set[tuple[int, int]] = set()
        """Rank and fetch: what was said to be late."""

    def planned(self, flight: Flight) -> None:
        """Every rank is given it at once."""
        flight.since_tick = self.ranks[0].now
        for open_ in self._open:
            open_[flight.id] = flight

    def plan_made(self, plan: Plan) -> None:
        """Who is asked may say that there is no such transfer, however often."""
        for asked in self._asked if plan.ask else ():
            asked.update(plan.ask)

    def polled(self, rank: Rank, report: Report) -> None:
        """Compare what is said with what is under way."""
        asked = self._asked[rank.index]
        for fetch in report.late:
            self._check_late(rank, fetch)
        for transfer in report.done:
            self._check_over(rank, transfer, "done", copies=True)
        for answer in report.answers:
            self._check_over(rank, answer.id, "answered", copies=False)
        for transfer, _ in report.failed:
            if transfer in self._open[rank.index] or transfer not in asked:
                self._check_over(rank, transfer, "failed", copies=None)
        asked.clear()
        if self._open[rank.index]:
            self._check_silence(rank)

    def at_end(self, slots_taken: int) -> None:
        """Workers that were closed have nothing left to say."""
        for index, open_ in enumerate(self._open):
            if open_:
                raise Violation("I8", f"rank {index} was closed and has not said what became of {list(open_)}")

    def _check_over(self, rank: Rank, transfer: int, how: str, *, copies: bool | None) -> None:
        flight = self._open[rank.index].pop(transfer, None)
        if flight is None or copies not in (None, flight.kind in COPIES):
            raise Violation("I8", f"rank {rank.index} says that {transfer} is {how}, which it has said or never began")
        if transfer in rank.copies.unfinished or (flight.kind not in COPIES and self._are_used(rank, flight)):
            raise Violation("I8", f"rank {rank.index} says that {flight.kind} {transfer} is {how} while its bytes move")

    def _are_used(self, rank: Rank, flight: Flight) -> bool:
        """Whether a tier is at the slots of an errand, and not because of another one that reads them too."""
        others = (other for other in self._open[rank.index].values() if other.kind == "sink")
        slots = set(flight.slots).difference(*(other.slots for other in others))
        return any(tier.uses(rank.slots[slot]) for slot in slots for tier in rank.tiers)

    def _check_late(self, rank: Rank, fetch: int) -> None:
        flight = self._open[rank.index].get(fetch)
        if flight is None or flight.kind != "fetch" or (rank.index, fetch) in self._late:
            raise Violation("I8", f"rank {rank.index} says that {fetch} is late, which is none or was said before")
        self._late.add((rank.index, fetch))

    def _check_silence(self, rank: Rank) -> None:
        """What is over was said, and what nobody should wait for any longer (F18)."""
        open_ = self._open[rank.index]
        if open_.keys() <= rank.copies.unfinished.keys():
            return
        heard_tick = max((tier.answered_tick for tier in rank.tiers), default=0)
        idle = all(tier.is_idle for tier in rank.tiers)
        for flight in open_.values():
            if flight.kind in COPIES:
                over = not rank.copies.knows(flight.id)
            elif flight.kind == "lookup":
                over = rank.now - flight.since_tick > DEADLINE_TICKS
            else:
                stalled = rank.now - max(flight.since_tick, heard_tick) > DEADLINE_TICKS
                over = idle or (flight.kind == "fetch" and stalled and (rank.index, flight.id) not in self._late)
            if over:
                raise Violation(
                    "I8", f"{flight.kind} {flight.id} is over or late, and rank {rank.index} does not say so"
                )
