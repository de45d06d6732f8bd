"""Which visit holds which block, for the policy `forecast`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from kvtide.core.eviction.forecast.kinds import (
    FIRST_TURN,
    KINDS,
    LEFT_BEHIND,
    RUNNING,
    SOON_POOLS,
    is_shared,
    kind_of_last_block,
    kind_of_shared,
    kind_of_turn,
)
from kvtide.core.eviction.forecast.queues import Queues
from kvtide.core.eviction.forecast.return_index import ReturnIndex
from kvtide.core.eviction.forecast.visits import NOTHING, Visits
from kvtide.core.groups import Key

VISITS_MORE = 4096
"""More visits are remembered than there are slots, because evicted ones are of interest too."""
REFIT_VISITS = 128
"""The index is computed anew after this many visits."""


class Recalled(NamedTuple):
    """What was recognised in a chain that comes back after it was evicted."""

    turn: int = 0
    """Of the conversation."""
    born: int = 0
    """When its last request was active."""
    shared_blocks: int = 0
    """How many blocks at its head are a shared beginning."""
    uses: int = 0
    """Of the shared beginning."""
    blocks: int = 0
    """How many blocks were recognised, those of a shared beginning included."""


class Holders:
    """Lets visits begin, take blocks over, end, lose blocks and come back; tells the index what came back when."""

    def __init__(self, slots: int, parents: Sequence[int], children: Sequence[int], pins: Sequence[int]) -> None:
        """`parents`, `children` and `pins` are live."""
        self.now = 0
        """Blocks touched so far."""
        self.visit_of = array("q", bytes(8 * slots))
        """The visit that holds each cached slot."""
        self.visits = Visits(slots + VISITS_MORE)
        self.queues = Queues(KINDS + 1, self.visits, children, pins)
        self.index = ReturnIndex(slots, KINDS, special_kinds=FIRST_TURN)
        self._parents = parents
        self._soon = SOON_POOLS * slots
        self._by_trace: dict[Key, int] = {}
        self._refit_at = REFIT_VISITS

    def row_of(self, slot: int) -> int:
        """Return the row of the visit that holds a slot."""
        return self.visit_of[slot] % self.visits.size

    def begin(self) -> int:
        """Begin the visit of a request: the first of a conversation, as far as is known."""
        return self._open(FIRST_TURN, 0)

    def follow(self, visit: int, turn: int, born: int) -> None:
        """Take note that a visit continues a conversation whose last request was active until `born`."""
        visits = self.visits
        row = visit % visits.size
        if turn > visits.turn[row]:
            visits.turn[row] = min(turn, 255)
            visits.soon[row] = self.now - born <= self._soon

    def grow(self, visit: int, known: int, fresh: int) -> None:
        """Take note that a visit adds `fresh` blocks behind `known` ones."""
        visits = self.visits
        row = visit % visits.size
        visits.grew[row] = 1
        if not visits.fresh[row]:
            visits.known[row] = known
        visits.fresh[row] += fresh

    def begin_shared(self, uses: int) -> int:
        """Begin a visit that will hold a beginning which others continue too."""
        return self._open(kind_of_shared(uses), uses)

    def share(self, chain: Sequence[int]) -> None:
        """Let a beginning that others continue too be held by a visit of its own."""
        row = self.row_of(chain[-1])
        visit = self.begin_shared(self.visits.turn[row] + 1 if is_shared(self.visits.kind[row]) else 1)
        self.take(chain, visit)
        self.wait(visit)

    def wait(self, visit: int) -> None:
        """Let a visit wait to be used or evicted."""
        self.queues.put(visit, self.visits.kind[visit % self.visits.size])

    def run(self, visit: int) -> None:
        """Let a visit be active now: it is not evicted unless there is nothing else."""
        visits = self.visits
        row = visit % visits.size
        visits.born[row] = self.now
        visits.running[row] = 1
        diverged = visits.fresh[row] > visits.known[row]
        visits.kind[row] = kind_of_turn(visits.turn[row], soon=bool(visits.soon[row]), diverged=diverged)
        if visits.queue[row] != RUNNING:
            self.queues.put(visit, RUNNING)

    def finish(self, visit: int) -> None:
        """Let a visit wait for the next turn, and its last block on its own."""
        visits = self.visits
        row = visit % visits.size
        if visits.running[row]:
            visits.running[row] = 0
            visits.born[row] = self.now
            self.queues.put(visit, visits.kind[row])
            if visits.grew[row] and visits.cached[row] > 1:
                slot = visits.tip[row]
                visits.tip[row] = self._parents[slot]
                visits.cached[row] -= 1
                self._hold([slot], kind_of_last_block(visits.turn[row]), visits.turn[row])
        if visits.next >= self._refit_at:
            self._refit_at = visits.next + REFIT_VISITS
            self.index.expose(visits, self.now)
            self.index.refit()

    def take(self, chain: Sequence[int], visit: int, *, in_front: bool = False) -> None:
        """Let a visit hold a chain of others' blocks: they came back. `in_front`: of those that it holds already."""
        visit_of, visits = self.visit_of, self.visits
        row = visit % visits.size
        goes_on = not is_shared(visits.kind[row])
        begin = 0
        for end in range(1, len(chain) + 1):
            before = visit_of[chain[begin]]
            if end == len(chain) or visit_of[chain[end]] != before:
                self._lose(before, chain[begin:end], goes_on=goes_on)
                begin = end
        for slot in chain:
            visit_of[slot] = visit
        visits.cached[row] += len(chain)
        if not in_front:
            visits.tip[row] = chain[-1]

    def lose_to_eviction(self, visit: int, blocks: int, tip: int, key: Key) -> None:
        """Take note that the last blocks of a visit were evicted; `key` is that of the first of them."""
        visits = self.visits
        row = visit % visits.size
        visits.cached[row] -= blocks
        visits.gone[row] += blocks
        visits.tip[row] = tip if visits.cached[row] else NOTHING
        trace, older = visits.trace[row], self._by_trace.get(key, NOTHING)
        if trace is not None:
            del self._by_trace[trace]
        if older != NOTHING:
            visits.trace[older % visits.size] = None
        visits.trace[row] = key
        self._by_trace[key] = visit

    def recall(self, keys: Sequence[Key], chain: Sequence[int]) -> Recalled:
        """Recognise what comes back after it was evicted, and take note of it."""
        visit = self._by_trace.get(keys[chain[0]], NOTHING)
        if visit == NOTHING:
            return Recalled()
        row = visit % self.visits.size
        blocks = self._come_back(visit, keys[chain[0]], len(chain))
        if not is_shared(self.visits.kind[row]):
            return Recalled(self.visits.turn[row] + 1, self.visits.born[row], blocks=blocks)
        uses = self.visits.turn[row] + 1
        for slot in chain[1:]:
            visit = self._by_trace.get(keys[slot], NOTHING)
            if visit != NOTHING:
                own = self._come_back(visit, keys[slot], len(chain) - blocks)
                row = visit % self.visits.size
                return Recalled(self.visits.turn[row] + 1, self.visits.born[row], blocks, uses, blocks + own)
        return Recalled(shared_blocks=blocks, uses=uses, blocks=blocks)

    def _come_back(self, visit: int, trace: Key, blocks_max: int) -> int:
        """Take note that evicted blocks of a visit are cached again; return how many."""
        visits = self.visits
        row = visit % visits.size
        blocks = min(visits.gone[row], blocks_max)
        self.index.give_back(visits.kind[row], self.now - visits.born[row], blocks)
        visits.gone[row] -= blocks
        visits.trace[row] = None
        del self._by_trace[trace]
        return blocks

    def _open(self, kind: int, turn: int) -> int:
        visits = self.visits
        row = visits.next % visits.size
        while visits.cached[row]:
            self._renumber(row)
            row = visits.next % visits.size
        trace = visits.trace[row]
        if trace is not None:
            del self._by_trace[trace]
        visits.queue[row] = self.queues.nowhere
        return visits.open(self.now, kind, turn)

    def _renumber(self, row: int) -> None:
        """Give a new number to a visit that still holds blocks when the ring comes round to it."""
        visits = self.visits
        slot = visits.tip[row]
        for _ in range(visits.cached[row]):
            self.visit_of[slot] = visits.next
            slot = self._parents[slot]
        visits.next += 1
        if visits.queue[row] != self.queues.nowhere:
            self.queues.put(visits.next - 1, visits.queue[row])

    def _hold(self, tail: Sequence[int], kind: int, turn: int) -> None:
        """Let a new visit hold the blocks `tail`, last block first, without anything having come back."""
        visit = self._open(kind, turn)
        row = visit % self.visits.size
        for slot in tail:
            self.visit_of[slot] = visit
        self.visits.tip[row] = tail[0]
        self.visits.cached[row] = len(tail)
        self.queues.put(visit, kind)

    def _lose(self, visit: int, taken: Sequence[int], *, goes_on: bool) -> None:
        """Take blocks from a visit. What it held before them it keeps.

        What it held behind them is left behind if the conversation `goes_on` elsewhere. If only its beginning was
        shared with another one, it is what it was.
        """
        visits = self.visits
        row = visit % visits.size
        self.index.give_back(visits.kind[row], self.now - visits.born[row], len(taken))
        tip = visits.tip[row]
        behind: list[int] = []
        while tip != taken[-1]:
            assert len(behind) < visits.cached[row], "a visit holds blocks that do not follow one another"
            behind.append(tip)
            tip = self._parents[tip]
        before = visits.cached[row] - len(taken) - len(behind)
        if behind and not before and not self._is_left_behind(visits.kind[row], goes_on):
            visits.cached[row] = len(behind)
            return
        visits.cached[row] = before
        visits.tip[row] = self._parents[taken[0]] if before else NOTHING
        if behind:
            self._hold(behind, LEFT_BEHIND, visits.turn[row])

    @staticmethod
    def _is_left_behind(kind: int, goes_on: bool) -> bool:
        return goes_on and kind != LEFT_BEHIND and not is_shared(kind)
