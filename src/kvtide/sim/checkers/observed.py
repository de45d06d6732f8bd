"""What an observer can know: which keys are visible, which transfers are in flight, what blocks will hold."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.core.groups import NULL_BLOCK
from kvtide.core.messages import Copy, Errand, Fetch, Lookup, Plan, Report, Sink
from kvtide.core.metrics import Gauges
from kvtide.sim.attention import Layout
from kvtide.sim.checkers.flight import Flight, Kind
from kvtide.sim.request import SimRequest
from kvtide.sim.tokens import NOTHING, ROOT, Tokens, epoch_of, group_of, node_of, stamp
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

OVERDUE_S = 60.0
"""Nobody waits longer than that for the word of a rank."""

LIFE_SHIFT = 32
"""No memory has more slots than two to the power of this."""


class Observed:
    """Bookkeeping of its own, made from events, plans and reports. The checkers read it."""

    def __init__(self, world: World) -> None:
        self.tokens: Tokens = world.tokens
        self.groups: Layout = world.groups
        self._any_tier = world.tier is not None
        self.all_ranks = (1 << world.ranks) - 1
        self.epoch = 0
        self.stopped = False
        """A rank has lost its device: nothing is offloaded any more."""
        self.will_hold = [NOTHING] * (world.device_blocks + 1)
        """Per device block: its stamp once all compute sent so far, and all loads planned so far, have ended."""
        self.visible: dict[int, int] = {}
        """Stamp to slot, for all keys that can be loaded."""
        self.slots_visible: set[int] = set()
        """The slots of all of them."""
        self.flights: dict[int, Flight] = {}
        self.writing: dict[int, int] = {}
        """Stamp to the transfer that brings it to the host."""
        self.slots_written: dict[int, int] = {}
        """Slot to the transfer that writes it."""
        self.slots_sinking: dict[int, int] = {}
        """Slot to the number of errands that let it sink."""
        self.slots_read: dict[int, int] = {}
        """Slot to the number of loads that read it."""
        self.blocks_busy: dict[int, int] = {}
        """Device block to the number of transfers that use it."""
        self.pins = [0] * (world.device_blocks + 1)
        """Per device block: references that kvtide has taken."""
        self.requests: dict[str, SimRequest] = {}
        self.computed: dict[str, int] = {}
        """Tokens of each request that kvtide was told of."""
        self.loads_due: list[SimRequest] = []
        """Requests that were admitted with a load and wait for the plan."""
        self.progress = 0
        """Counts whatever brings a request further than it has ever been."""
        self.answers = 0
        """Counts what a node has answered."""
        self.asked_blocks = 0
        """Device blocks for which a node was asked for slots, since the last plan was made."""
        self.gauges: Gauges
        """The manager's own gauges, as of the last plan, report that ended a transfer, reset, or end of a request."""
        self._parents: dict[int, int] = {}
        self.settled: list[Flight] = []
        """Transfers that the last report has ended."""
        self.overdue: dict[int, Flight] = {}
        """Those among `flights` that some rank has not reported for too long."""
        self.overdue_total = 0
        """How many there were so far."""
        self._now_s = 0.0
        self.given_up: list[Flight] = []
        """Loads that are overdue since the last report."""

    # ------------------------------------------------------------------ keys

    def stamp_of(self, group: int, key: bytes) -> int:
        """Return the stamp that a key stands for, with the weights of now."""
        return stamp(int.from_bytes(key, "big"), self.epoch, group)

    def tokens_of(self, content: int) -> int:
        """Return the length of the prefix that a stamp stands for."""
        return self.tokens.length[node_of(content)]

    def is_full_block(self, content: int) -> bool:
        """Whether a stamp ends a block of its group."""
        return content > 0 and self.tokens_of(content) % self.groups[group_of(content)].block_tokens == 0

    def parent_of(self, content: int) -> int:
        """Return the stamp of the block before, with the same weights; NOTHING for the first one."""
        parent = self._parents.get(content)
        if parent is None:
            group = group_of(content)
            node = node_of(content)
            for _ in range(self.groups[group].block_tokens):
                node = self.tokens.before[node]
            parent = stamp(node, epoch_of(content), group) if node != ROOT else NOTHING
            self._parents[content] = parent
        return parent

    def before(self, content: int) -> Iterator[int]:
        """Yield the stamps of all blocks before one."""
        while (content := self.parent_of(content)) != NOTHING:
            yield content

    # ------------------------------------------------------------------ plans

    def flights_of(self, plan: Plan) -> list[Flight]:
        """Return what a plan starts."""
        flights = [self._load(copy) for copy in plan.loads] + [self._store(copy) for copy in plan.stores]
        return flights + [self._errand(errand) for errand in plan.errands]

    def _errand(self, errand: Errand) -> Flight:
        """Return an errand below host memory. Only fetches and sinks touch host slots."""
        if isinstance(errand, Fetch | Sink):
            stamps = [self.stamp_of(group, key) for group, key in errand.names]
            kind: Kind = "fetch" if isinstance(errand, Fetch) else "sink"
            flight = Flight(errand.id, kind, (), errand.slots, stamps, self.all_ranks)
            flight.leaving = isinstance(errand, Sink) and errand.leaving
            return flight
        kind = "lookup" if isinstance(errand, Lookup) else "clear"
        return Flight(errand.id, kind, (), (), [], self.all_ranks)

    def _store(self, copy: Copy) -> Flight:
        stamps = [self.will_hold[block] for block in copy.blocks]
        orphaned = epoch_of(stamps[0]) != self.epoch
        return Flight(copy.id, "store", copy.blocks, _places(copy), stamps, self.all_ranks, orphaned=orphaned)

    def _load(self, copy: Copy) -> Flight:
        """Find the request that a load is for: each was admitted since the last plan, and has these blocks."""
        for request in self.loads_due:
            expected = {
                block: content
                for table, stamps in zip(request.tables, request.stamps, strict=True)
                for block, content in zip(table, stamps, strict=False)
                if block != NULL_BLOCK
            }
            if all(block in expected for block in copy.blocks):
                self.loads_due.remove(request)
                stamps = [expected[block] for block in copy.blocks]
                flight = Flight(copy.id, "load", copy.blocks, _places(copy), stamps, self.all_ranks)
                flight.request, flight.life = request, request.life
                flight.orphaned = request.epoch != self.epoch
                return flight
        raise Violation("I1", f"load {copy.id} writes to blocks {list(copy.blocks)}, which no request waits for")

    def begin(self, flight: Flight) -> None:
        """Take note of a transfer."""
        self.flights[flight.id] = flight
        flight.since_s = self._now_s
        for block in flight.blocks:
            self.blocks_busy[block] = self.blocks_busy.get(block, 0) + 1
        if flight.writes_host:
            for slot, content in zip(flight.slots, flight.stamps, strict=True):
                self.slots_written[slot] = flight.id
                self.writing[content] = flight.id
        elif flight.kind == "sink":
            for slot in flight.slots:
                self.slots_sinking[slot] = self.slots_sinking.get(slot, 0) + 1
        else:
            for slot in flight.slots:
                self.slots_read[slot] = self.slots_read.get(slot, 0) + 1
            for block, content in zip(flight.blocks, flight.stamps, strict=True):
                self.will_hold[block] = content

    @property
    def slots_stored(self) -> int:
        """Number of slots that stores write to, which is cheap to say where nothing else writes."""
        if not self._any_tier:
            return len(self.slots_written)
        return sum(len(flight.slots) for flight in self.flights.values() if flight.is_store)

    @property
    def slots_leaving(self) -> int:
        """Number of slots that were given up and are still read, to sink."""
        if not self._any_tier:
            return 0
        return sum(len(flight.slots) for flight in self.flights.values() if flight.leaving)

    # ------------------------------------------------------------------ time and reports

    def passed(self, seconds: float) -> None:
        """Let time pass: a transfer that is overdue has failed, but for what tiers bring all the same."""
        self._now_s += seconds
        for flight in self.flights.values():  # oldest first
            if self._now_s - flight.since_s < OVERDUE_S:
                break
            if flight.id not in self.overdue:
                self.overdue[flight.id] = flight
                self.overdue_total += 1
                flight.failed = flight.kind in ("store", "load")
                if flight.kind == "load":
                    self.given_up.append(flight)

    def take_given_up(self) -> list[Flight]:
        """Return the loads that are overdue since the last report, and that their requests wait for to the last."""
        given_up, self.given_up = self.given_up, []
        return [flight for flight in given_up if flight.ranks_left and self.is_awaited(flight)]

    def is_awaited(self, flight: Flight) -> bool:
        """Whether a request waits for a transfer."""
        request = flight.request
        return request is not None and flight.life == request.life and self.requests.get(request.id) is request

    def hear(self, reports: list[Report]) -> None:
        """Tick off what ranks say; `settled` has the transfers that are over then."""
        for report in reports:
            if not self.all_ranks >> report.rank & 1:
                continue
            for transfer_id, slots in report.not_kept:
                self._hear_not_kept(report.rank, transfer_id, slots)
            for transfer_id in report.done:
                self._hear(report.rank, transfer_id, failed=False)
            for transfer_id, _ in report.failed:
                self._hear(report.rank, transfer_id, failed=True)
            for answer in report.answers:
                self._hear(report.rank, answer.id, failed=False, hits=answer.hits)

    def _hear_not_kept(self, rank: int, transfer_id: int, slots: tuple[int, ...]) -> None:
        flight = self.flights.get(transfer_id)
        if flight is not None and flight.is_store and flight.ranks_left >> rank & 1:
            flight.missed.update(flight.slots.index(slot) for slot in slots)

    def _hear(self, rank: int, transfer_id: int, *, failed: bool, hits: tuple[int, ...] | None = None) -> None:
        flight = self.flights.get(transfer_id)
        if flight is None or not flight.ranks_left >> rank & 1:
            return
        if failed and transfer_id in self.overdue and flight.kind not in ("store", "load"):
            hits = ()  # it was asked, and has nothing of the kind under way
        if (flight.kind in ("store", "load")) != (hits is None):
            return  # a stray report, about something else with this id
        flight.missed.update(set(range(len(flight.slots))).difference(hits or ()) if hits is not None else ())
        flight.ranks_left &= ~(1 << rank)
        flight.failed = flight.failed or failed
        if not flight.ranks_left:
            self.settled.append(flight)

    def end_settled(self) -> None:
        """Forget the transfers that are over."""
        for flight in self.settled:
            del self.flights[flight.id]
            self.overdue.pop(flight.id, None)
            _count_down(self.blocks_busy, flight.blocks)
            if flight.writes_host:
                for slot, content in zip(flight.slots, flight.stamps, strict=True):
                    del self.slots_written[slot]
                    if self.writing.get(content) == flight.id:  # not if it is written once more, to other memory
                        del self.writing[content]
            elif flight.kind == "sink":
                _count_down(self.slots_sinking, flight.slots)
            else:
                _count_down(self.slots_read, flight.slots)
        self.settled = []

    def is_read(self, slot: int) -> bool:
        """Whether somebody reads a slot, transfers that the present report has ended not counted."""
        readers = self.slots_read.get(slot, 0) + self.slots_sinking.get(slot, 0)
        return readers > sum(slot in flight.slots for flight in self.settled)

    # ------------------------------------------------------------------ visible keys

    def store(self, contents: list[int]) -> None:
        """Make contents visible. Runs while the transfer that brought them is still known."""
        for content in contents:
            flight = self.flights[self.writing[content]]
            slot = flight.slots[flight.stamps.index(content)]
            self.visible[content] = slot
            self.slots_visible.add(slot)

    def remove(self, contents: list[int]) -> None:
        """Make contents invisible."""
        for content in contents:
            slot = self.visible.pop(content, None)
            if slot is None:
                raise Violation("I5", f"{self.tokens.describe(content)} was evicted and was not there")
            self.slots_visible.discard(slot)

    def clear(self) -> None:
        """Make everything invisible."""
        self.visible.clear()
        self.slots_visible.clear()


def _places(copy: Copy) -> tuple[int, ...]:
    """Return the slots of a copy as numbers that no slot of other memory has."""
    return tuple(copy.life << LIFE_SHIFT | slot for slot in copy.slots) if copy.life else copy.slots


def _count_down(counts: dict[int, int], items: tuple[int, ...]) -> None:
    for item in items:
        left = counts[item] - 1
        if left:
            counts[item] = left
        else:
            del counts[item]
