"""What `forecast` should remember, kept as plainly as it can be: a list of visits, each with a list of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kvtide.core.eviction import NO_PARENT, Forecast
from kvtide.core.eviction.forecast.holders import REFIT_VISITS
from kvtide.core.eviction.forecast.kinds import (
    FIRST_TURN,
    KINDS,
    LAST_BLOCK,
    LAST_BLOCK_LATER,
    LEFT_BEHIND,
    is_shared,
    kind_of_shared,
    kind_of_turn,
)
from kvtide.core.eviction.forecast.return_index import BINS, ReturnIndex
from tests.contracts.eviction_contract import Pool


@dataclass(eq=False)
class Visit:
    """The blocks that one request was the last to touch."""

    kind: int
    turn: int
    born: int
    slots: list[int] = field(default_factory=list)
    """Those that are cached, head first."""
    gone: int = 0
    trace: bytes | None = None
    known: int = 0
    fresh: int = 0
    soon: bool = False
    running: bool = False
    grew: bool = False

    @property
    def row(self) -> tuple[object, ...]:
        tip = self.slots[-1] if self.slots else -1
        numbers = self.kind, self.turn, self.born, tip, len(self.slots), self.gone, self.known, self.fresh
        return *numbers, self.soon, self.running, self.grew, self.trace

    @property
    def next_turn(self) -> int:
        return 0 if is_shared(self.kind) else self.turn + 1


class Books(Pool):
    """A pool under `forecast` that keeps the books a second time, and follows the victims that the policy chooses."""

    def __init__(self, slots: int) -> None:
        super().__init__(Forecast, slots, [b""] * slots)
        self.patience = max(1, slots // 16)
        self.soon_blocks = 4 * slots
        self.begin_anew()

    def begin_anew(self) -> None:
        self.now = 0
        self.visits: dict[int, Visit] = {}
        """The last ones, by number, as many as the policy has rows for."""
        self.next = 0
        self.holder: dict[int, Visit] = {}
        self.continued: dict[int, int] = {}
        """How often each block was continued since it is cached."""
        self.refit_at = REFIT_VISITS
        self.index = ReturnIndex(self.policy.slots, KINDS, special_kinds=FIRST_TURN)
        self.exposed_up_to = [0] * BINS

    # ------------------------------------------------------------------ what happens

    def add(self, count: int, parent: int = NO_PARENT, depth: int | None = None) -> list[int]:
        chain = super().add(count, parent, depth)
        self.now += count
        turn, born, shared, uses, back = self.recall(chain)
        if shared:
            visit = self.open(kind_of_shared(uses), uses)
            self.link(chain[:shared], parent, visit)
            parent = chain[shared - 1]
            self.continued[parent] = 2
        if shared < count:
            visit = self.visit_behind(parent)
            self.follow(visit, turn, born)
            visit.grew = True
            if not visit.fresh:
                visit.known = self.depth[chain[0]] + back
            visit.fresh += max(0, count - back)
            self.link(chain[shared:], parent, visit)
            self.run(visit)
        return chain

    def adopt(self, child: int, parent: int) -> None:
        super().adopt(child, parent)
        self.continued[parent] += 1

    def use(self, chain: Sequence[int]) -> None:
        super().use(chain)
        self.note_use(chain)

    def note_use(self, chain: Sequence[int]) -> None:
        self.now += len(chain)
        own = self.end_of_shared(chain)
        if own:
            before = self.holder[chain[own - 1]]
            uses = before.turn + 1 if is_shared(before.kind) else 1
            self.take(chain[:own], self.open(kind_of_shared(uses), uses))
        if own < len(chain):
            before, visit = self.holder[chain[-1]], self.open(FIRST_TURN, 0)
            self.follow(visit, before.next_turn, before.born)
            self.take(chain[own:], visit)
            self.run(visit)

    def end(self, chain: Sequence[int]) -> None:
        """Let a request end which had these blocks."""
        self.policy.renew(chain, (self.depth[chain[0]] + 1) * 4, 4)
        if not self.holder[chain[-1]].running:
            self.note_use(chain)
        visit = self.holder[chain[-1]]
        before = [slot for slot in chain if self.holder[slot] is not visit]
        own = self.end_of_shared(before)
        if own < len(before) and visit.running:
            self.take(before[own:], visit)
        if visit.running:
            visit.running, visit.born = False, self.now
            if visit.grew and len(visit.slots) > 1:
                self.hold([visit.slots.pop()], LAST_BLOCK_LATER if visit.turn else LAST_BLOCK, visit.turn)
        if self.next >= self.refit_at:
            self.refit_at = self.next + REFIT_VISITS
            self.expose()
            self.index.refit()

    def evict(self, count: int) -> list[int]:
        cached = dict(self.parent)
        victims = super().evict(count)
        for visit, slots in groupby(victims, key=lambda slot: self.holder[slot]):
            self.choose(visit, cached)
            for slot in slots:
                del cached[slot]
                assert visit.slots.pop() == slot, "a visit loses its last blocks first"
                visit.gone += 1
                del self.holder[slot]
            for other in self.visits.values():
                if other.trace == self.keys[slot]:
                    other.trace = None
            visit.trace = self.keys[slot]
        return victims

    def choose(self, visit: Visit, cached: dict[int, int]) -> None:
        """Hear that a visit is about to lose blocks, and which blocks are cached, with their parents."""

    # ------------------------------------------------------------------ the books

    def open(self, kind: int, turn: int) -> Visit:
        while (oldest := self.visits.pop(self.next - self.rows, None)) and oldest.slots:
            self.number(oldest)  # it still holds blocks
        return self.number(Visit(kind, min(turn, 255), self.now))

    def number(self, visit: Visit) -> Visit:
        self.visits[self.next] = visit
        self.next += 1
        return visit

    def visit_behind(self, parent: int) -> Visit:
        """The visit of the request that continues a block: the one that has it, or a new one."""
        if parent == NO_PARENT:
            return self.open(FIRST_TURN, 0)
        before = self.holder[parent]
        if before.running and before.slots[-1] == parent:
            return before
        visit = self.open(FIRST_TURN, 0)
        if self.continued[parent] < 2:
            ended_just_now = before.born > self.now - self.patience
            self.follow(visit, before.turn if ended_just_now else before.next_turn, before.born)
        return visit

    def follow(self, visit: Visit, turn: int, born: int) -> None:
        if turn > visit.turn:
            visit.turn, visit.soon = min(turn, 255), self.now - born <= self.soon_blocks

    def run(self, visit: Visit) -> None:
        visit.born, visit.running = self.now, True
        visit.kind = kind_of_turn(visit.turn, soon=visit.soon, diverged=visit.fresh > visit.known)

    def link(self, chain: Sequence[int], parent: int, visit: Visit) -> None:
        if parent != NO_PARENT:
            self.continued[parent] += 1
        self.continued |= dict.fromkeys(chain, 1)
        self.continued[chain[-1]] = 0
        self.holder |= dict.fromkeys(chain, visit)
        visit.slots += chain

    def end_of_shared(self, chain: Sequence[int]) -> int:
        return max((index + 1 for index, slot in enumerate(chain) if self.continued[slot] >= 2), default=0)

    def take(self, chain: Sequence[int], visit: Visit) -> None:
        for before, slots in groupby(chain, key=lambda slot: self.holder[slot]):
            self.lose(before, list(slots), goes_on=not is_shared(visit.kind))
        self.holder |= dict.fromkeys(chain, visit)
        visit.slots[:0] = chain

    def lose(self, visit: Visit, taken: list[int], *, goes_on: bool) -> None:
        self.give_back(visit, len(taken))
        first = visit.slots.index(taken[0])
        before, behind = visit.slots[:first], visit.slots[first + len(taken) :]
        if behind and not before and (not goes_on or visit.kind == LEFT_BEHIND or is_shared(visit.kind)):
            visit.slots = behind  # it is what it was
            return
        visit.slots = before
        if behind:
            self.hold(behind, LEFT_BEHIND, visit.turn)

    def hold(self, slots: list[int], kind: int, turn: int) -> None:
        visit = self.open(kind, turn)
        visit.slots = slots
        self.holder |= dict.fromkeys(slots, visit)

    def recall(self, chain: Sequence[int]) -> tuple[int, int, int, int, int]:
        """Return turn and birth of the request before, how many blocks are shared, their uses, how many are known."""
        visit = self.traced(chain[0])
        if visit is None:
            return 0, 0, 0, 0, 0
        back = self.come_back(visit, len(chain))
        if not is_shared(visit.kind):
            return visit.turn + 1, visit.born, 0, 0, back
        for slot in chain[1:]:
            own = self.traced(slot)
            if own is not None:
                both = back + self.come_back(own, len(chain) - back)
                return own.turn + 1, own.born, back, visit.turn + 1, both
        return 0, 0, back, visit.turn + 1, back

    def traced(self, slot: int) -> Visit | None:
        return next((visit for visit in self.visits.values() if visit.trace == self.keys[slot]), None)

    def come_back(self, visit: Visit, most: int) -> int:
        blocks = min(visit.gone, most)
        self.give_back(visit, blocks)
        visit.gone -= blocks
        visit.trace = None
        return blocks

    def bin(self, age: float) -> int:
        return max(number for number, edge in enumerate(self.index.edges) if edge <= age)

    def give_back(self, visit: Visit, blocks: int) -> None:
        self.index.returned[visit.kind][self.bin(self.now - visit.born)] += blocks

    def expose(self) -> None:
        for age_bin, edge in enumerate(self.index.edges):
            for number in range(max(self.exposed_up_to[age_bin], self.next - self.rows), self.next):
                visit = self.visits[number]
                if visit.born > self.now - edge:
                    break
                blocks = len(visit.slots) + visit.gone
                self.index.exposed[visit.kind][age_bin] += blocks
                self.index._visits += age_bin == 0 and blocks > 0 and visit.kind >= FIRST_TURN
                self.exposed_up_to[age_bin] = number + 1

    # ------------------------------------------------------------------ comparison

    @property
    def forecast(self) -> Forecast:
        assert isinstance(self.policy, Forecast)
        return self.policy

    @property
    def rows(self) -> int:
        return self.forecast._holders.visits.size

    def check(self) -> None:
        """Compare with what the policy has written down."""
        holders, rows = self.forecast._holders, self.forecast._holders.visits
        assert (holders.now, rows.next) == (self.now, self.next)
        numbers = rows.kind, rows.turn, rows.born, rows.tip, rows.cached, rows.gone, rows.known, rows.fresh
        columns = *numbers, rows.soon, rows.running, rows.grew, rows.trace
        for number, visit in self.visits.items():
            assert tuple(column[number % rows.size] for column in columns) == visit.row
        assert len(holders.visit_of) == self.policy.slots
        assert {slot: self.visits[holders.visit_of[slot]] for slot in self.holder} == self.holder
        traced = {visit.trace: number % rows.size for number, visit in self.visits.items() if visit.trace is not None}
        assert {key: number % rows.size for key, number in holders._by_trace.items()} == traced
        for name in ("exposed", "returned", "_visits", "_index"):
            assert getattr(holders.index, name) == getattr(self.index, name)
