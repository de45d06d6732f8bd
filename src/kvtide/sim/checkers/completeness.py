"""I6: every full block that was computed is stored, or its loss is counted under a reason; and nothing else is counted.

In eager mode blocks are due when their request ends or is preempted: each must then be visible, on its way, begun,
waiting for its turn, or counted as lost. Counters have no keys, so what they say is compared call by call with the
number of blocks that each call is about. Which blocks a call has begun is known when the next plan names them: then the
ends of requests since the last plan are gone through in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtide.core.groups import NULL_BLOCK, Key
from kvtide.core.messages import Outcome, Plan
from kvtide.core.reasons import NotStored
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.flight import Flight
from kvtide.sim.checkers.losses import Losses
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

_APART = (NotStored.OUT_OF_WINDOW, NotStored.NO_KEY)
"""Reasons for blocks that a request does not have any more, or that have no key: they are not among the due ones."""


@dataclass(slots=True)
class _End:
    """A request that has ended or was preempted since the last plan."""

    request_id: str
    due: list[int]
    """Contents that were neither visible nor on their way when it ended."""
    begun: int = 0
    handled: int = 0
    """Blocks that were begun, wait for their turn, or are counted as lost."""
    extra: int = 0
    """Blocks that may be among them although they were not due."""
    visible: set[int] = field(default_factory=set)
    """Its contents that were visible: evicted to make room for the others, they are due as well."""


class CompletenessChecker(Checker):
    """Knows which blocks are due, and what the manager has done about how many."""

    invariant = "I6"

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._eager = world.mode == "eager"
        self._all_null_positions = world.admission != "all" or world.habits.finds_dropped
        """Whether blocks that a request does not have any more may be stored, or counted as not admitted."""
        self._ends: list[_End] = []
        self._end: _End | None = None
        self._losses = Losses(self)
        self._pins = self._backlog = 0
        """Device blocks that are being stored, and that wait for it, after the last call."""
        self._begun = 0
        """Of these, blocks that no plan has named when a reset came."""
        self._missed: dict[int, None] = {}
        """Contents that have been due, and not visible since."""
        self._gone: dict[str, dict[int, None]] = {}
        """Per request: contents that left the window before anyone stored them."""
        self._gone_total = 0
        self._slid: dict[str, dict[int, None]] = {}
        """Per request: contents that left the window."""
        self._slid_total = 0
        self._tried: set[int] = set()
        """Contents of all stores so far. What becomes of each is checked when it ends."""
        self._no_key = 0
        self._stale = 0

    # ------------------------------------------------------------------ when requests end

    def before_end(self, request: SimRequest, preempted: bool) -> None:
        """Read the counters, and see what is not on the host."""
        self._losses.expect_none(f"{request.id} ends")
        if not self._eager:
            return
        self._end = self._make_end(request, preempted)

    def _make_end(self, request: SimRequest, preempted: bool) -> _End:
        """Return what a request owes: contents that were computed, with keys, as far as kvtide was told.

        A preempted request may have lost its blocks already; what has left the window of a finished one is looked at
        elsewhere. Nothing that was computed with old weights may be stored, and all of it is lost.
        """
        observed = self.observed
        computed = observed.computed[request.id]
        end = _End(request.id, [])
        self._no_key = self._stale = 0
        is_stale = request.epoch != observed.epoch
        for index, group in enumerate(self.world.groups) if computed else ():
            blocks = computed // group.block_tokens
            full = min(blocks, len(request.keys[index]))
            if is_stale:
                self._stale += full
                continue
            self._no_key += blocks - full
            table = request.tables[index]
            for block, content in enumerate(request.stamps[index][:full]):
                if content in observed.visible:
                    end.visible.add(content)
                elif (writer := observed.writing.get(content)) is not None:
                    observed.flights[writer].relied_on.add(content)
                elif preempted or (block < len(table) and table[block] != NULL_BLOCK):
                    end.due.append(content)
                else:
                    end.extra += self._all_null_positions
        return end

    def removed(self, contents: list[int]) -> None:
        """What is evicted while a request ends may be its own."""
        if self._end is not None:
            self._end.extra += len(self._end.visible.intersection(contents))

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """See how many blocks were begun, wait, or are counted. What was begun is known with the next plan."""
        if self.world.admission == "all" and self._losses.total_of(NotStored.NOT_ADMITTED):
            raise Violation("I6", f"all blocks are to be stored, and one is kept out when {request.id} ends")
        if not self._eager:
            self._losses.expect_none(f"the end of {request.id}")
            return
        end, self._end = self._end, None
        assert end is not None
        self._check_reasons(request)
        if not preempted:
            self._check_window(request)
        lost = self._losses.new() - sum(map(self._losses.new_of, _APART)) - self._stale
        self._losses.read()
        gauges = self.observed.gauges
        end.begun = gauges.store_pins - self._pins
        end.handled = end.begun + gauges.backlog_blocks - self._backlog + lost
        self._pins, self._backlog = gauges.store_pins, gauges.backlog_blocks
        self._missed.update(dict.fromkeys(end.due))
        if end.due or end.handled:
            self._ends.append(end)
        self._check_gone(request, preempted)

    def _check_reasons(self, request: SimRequest) -> None:
        for why, expected in ((NotStored.NO_KEY, self._no_key), (NotStored.RESET, self._stale)):
            counted = self._losses.new_of(why)
            if counted != expected:
                raise Violation(
                    "I6", f"{expected} blocks of {request.id} are lost to {why.value}, and {counted} are counted"
                )
        if self._losses.new_of(NotStored.COPY_FAILED):
            raise Violation("I6", f"a copy is counted as failed when {request.id} ends")

    def _check_ends(self, stamps: list[int]) -> None:
        """Go through the ends since the last plan. `stamps`: all blocks that were begun since, in order."""
        begun: set[int] = set()
        position = 0
        for end in self._ends:
            due = sum(content not in begun for content in end.due)
            begun.update(stamps[position : position + end.begun])
            position += end.begun
            if not due <= end.handled <= due + end.extra:
                raise Violation(
                    "I6",
                    f"{due} blocks were due when {end.request_id} ended, and {end.handled} were begun, waiting or "
                    f"counted as lost",
                )
        self._ends.clear()

    # ------------------------------------------------------------------ windows

    def slid(self, request: SimRequest, group: int, block: int) -> None:
        """A block leaves its window. If nobody has stored it, it is gone."""
        if not self._eager or request.epoch != self.observed.epoch:
            return
        content = request.stamps[group][block]
        self._slid.setdefault(request.id, {})[content] = None
        self._slid_total += 1
        if content not in self._tried and self.observed.tokens_of(content) <= request.keyed_tokens:
            self._gone.setdefault(request.id, {})[content] = None

    def _check_window(self, request: SimRequest) -> None:
        """Only what left the window of this very request is lost in this way, and once."""
        counted, now = self._losses.total_of(NotStored.OUT_OF_WINDOW), self._losses.new_of(NotStored.OUT_OF_WINDOW)
        visible = self.observed.visible
        lost = sum(content not in visible for content in self._slid.get(request.id, ()))
        if now > lost or counted > self._slid_total:
            raise Violation(
                "I6",
                f"{lost} blocks have left the window of {request.id} and are not visible, and {now} are counted",
            )

    def _check_gone(self, request: SimRequest, preempted: bool) -> None:
        self._slid.pop(request.id, None)
        gone = self._gone.pop(request.id, {})
        if preempted or not gone or self.world.habits.finds_dropped:
            return
        computed = self.observed.computed[request.id]
        self._gone_total += sum(
            content not in self._missed and self.observed.tokens_of(content) <= computed for content in gone
        )
        counted = self._losses.total_of(NotStored.OUT_OF_WINDOW) + self._losses.total_of(NotStored.NOT_ADMITTED)
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
        """Read the counters."""
        self._losses.expect_none("a report")

    def reported(self, outcome: Outcome) -> None:
        """Each block of a store that came to nothing is tried again or counted as lost. This holds in lazy mode too."""
        settled = self.observed.settled
        stores = [flight for flight in settled if flight.is_store]
        failed = sum(len(flight.blocks) for flight in stores if flight.failed and not flight.orphaned)
        void = sum(len(flight.blocks) for flight in stores if flight.orphaned)
        # Computed blocks that were to come up and did not are stored after all, or lost to a reset.
        fetches = [flight for flight in settled if flight.kind == "fetch" and (flight.missed or flight.orphaned)]
        unkept = sum(len(flight.slots) for flight in fetches)
        relied_on = sum(map(_relied_on_in_vain, fetches))
        done = [flight for flight in stores if not flight.failed and not flight.orphaned]
        not_kept = sum(len(flight.missed) for flight in done)
        counted = self._losses.new_of(NotStored.UNPACKED_FULL)
        if counted != not_kept:
            raise Violation("I6", f"some rank did not keep {not_kept} blocks, and {counted} are counted as such")
        reset = self._losses.new_of(NotStored.RESET)
        lost = self._losses.new() - reset - counted
        gauges = self.observed.gauges
        again = gauges.backlog_blocks - self._backlog
        right = failed <= again + lost <= failed + unkept and void <= reset <= void + unkept
        if not right or again + lost + reset < failed + void + relied_on:
            raise Violation(
                "I6",
                f"stores of {failed} blocks failed and of {void} came to nothing by a reset; {again} wait for another "
                f"try, and {lost} and {reset} are counted as lost",
            )
        self._pins, self._backlog = gauges.store_pins, gauges.backlog_blocks
        self._losses.read()

    # ------------------------------------------------------------------ plans, resets, the end

    def before_plan(self, idle: bool) -> None:
        """Read the counters."""
        self._losses.expect_none("a plan")

    def plan_made(self, plan: Plan) -> None:
        """From here on, what was begun is in flight, and known by its content."""
        if self._ends:
            flights = self.observed.flights
            self._check_ends([content for store in plan.stores for content in flights[store.id].stamps])
        gauges = self.observed.gauges
        if self._losses.new():
            self._check_plan(self._backlog - gauges.backlog_blocks)
        self._pins, self._backlog = gauges.store_pins, gauges.backlog_blocks

    def _check_plan(self, left_backlog: int) -> None:
        """A plan loses only what waited, what left its window, and in lazy mode what is not to be stored at all."""
        moved = {why: self._losses.new_of(why) for why in NotStored}
        if moved[NotStored.RESET] or moved[NotStored.NO_KEY] or moved[NotStored.COPY_FAILED]:
            raise Violation("I6", f"a plan cannot lose blocks in this way: {moved}")
        if moved[NotStored.NOT_ADMITTED] and (self._eager or self.world.admission == "all"):
            raise Violation("I6", f"blocks are kept out that are to be stored: {moved}")
        visible = self.observed.visible
        slid = sum(content not in visible for contents in self._slid.values() for content in contents)
        if moved[NotStored.OUT_OF_WINDOW] > slid or self._losses.total_of(NotStored.OUT_OF_WINDOW) > self._slid_total:
            raise Violation("I6", f"{slid} blocks have left their window and are not visible: {moved}")
        waited = (
            moved[NotStored.HOST_FULL]
            + moved[NotStored.EVICTED_FROM_DEVICE]
            + moved[NotStored.PREFIX_MISSING]
            + moved[NotStored.QUEUE_FULL]
        )
        if waited > left_backlog:
            raise Violation("I6", f"{left_backlog} blocks that waited do so no longer: {moved}")
        self._losses.read()

    def after_evicted(self, group: int, key: Key) -> None:
        """In lazy mode, a block that was taken and that nobody has stored is lost. In eager mode it was due before."""
        counted = self._losses.new()
        observed = self.observed
        content = observed.stamp_of(group, key)
        safe = content in observed.visible or content in observed.writing
        lost = int(not self._eager and not safe)
        unsure = self._backlog > 0 or self.world.admission != "all"
        if counted != lost and not (unsure and lost and not counted):
            what = observed.tokens.describe(content)
            raise Violation("I6", f"{what} is taken: {lost} blocks are lost by that and {counted} are counted")
        if counted:
            self._losses.read()

    def before_reset(self) -> None:
        """What waits is lost, and what was begun since the last plan."""
        self._losses.expect_none("a reset")
        self._begun = self.manager.gauges().store_pins - self.observed.slots_stored

    def after_reset(self, below: bool) -> None:
        """All that no rank has heard of must be counted, and no more. What is in flight is counted when it ends."""
        counted = self._losses.new()
        if counted != self._backlog + self._begun:
            waited = f"{self._backlog} blocks were waiting at the reset, {self._begun} were begun"
            raise Violation("I6", f"{waited}, and {counted} are counted")
        self._losses.read()
        self._pins -= self._begun
        self._backlog = 0
        self._ends.clear()
        self._missed.clear()
        self._gone.clear()
        self._slid.clear()

    def at_rest(self) -> None:
        """Of what was ever due, everything has been visible, or is counted."""
        lost = self._losses.total()
        if len(self._missed) > lost:
            raise Violation("I6", f"{len(self._missed)} blocks are not on the host, and {lost} are counted as lost")


def _relied_on_in_vain(fetch: Flight) -> int:
    """Return how many blocks were computed, not stored because they were to come up, and have not come."""
    return sum(
        content in fetch.relied_on and (fetch.orphaned or position in fetch.missed)
        for position, content in enumerate(fetch.stamps)
    )
