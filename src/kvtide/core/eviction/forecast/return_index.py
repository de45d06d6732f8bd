"""What one slot earns in a unit of time, learned from when blocks came back and when they did not.

For each kind of visit (a first turn, a third turn, a shared beginning …) two rows of numbers by age are kept: how many
blocks reached that age, and how many came back at it. Their ratio is the chance to come back at that age, and from
these follows the index of Gittins: of all times to go on waiting, the best ratio of blocks that come back to the
time their slots are held. What has the lowest index leaves. An age that is too young to come back is not punished,
one that is past its time is, and a kind that rarely comes back need not be kept at all.

Time is counted in blocks touched, which is what fills a cache, and ages are binned in relation to the pool's size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvtide.core.eviction.forecast.visits import Visits

FIRST_EDGE = 1 / 16
"""The youngest bin ends here, in pool sizes of blocks touched."""
BIN_RATIO = 2**0.5
BINS = 19
_BINS_PER_E = 1 / math.log(BIN_RATIO)
PRIOR_RETURNS = 0.1
"""Assumed chance to come back in one bin, before anything is known: the same in each, which makes the order LRU's."""
PRIOR_VISITS = 20
"""A kind's own numbers weigh as much as the assumption once this many visits have been seen."""
CHANCE_MAX = 0.5
"""No kind is sure to come back in one bin: what is known of its later ages must not vanish."""
MEMORY_POOLS = 64
"""Older observations count half after this many pool sizes of blocks."""


class ReturnIndex:
    """Counts by kind and age, and the index that follows from them."""

    def __init__(self, slots: int, kinds: int, special_kinds: int) -> None:
        """The first `special_kinds` kinds say nothing about the others."""
        self._first_edge = max(1.0, slots * FIRST_EDGE)
        self.edges = [0.0] + [self._first_edge * BIN_RATIO**step for step in range(BINS - 1)]
        ends = [*self.edges[1:], self.edges[-1] * BIN_RATIO]
        widths = [end - begin for begin, end in zip(self.edges, ends, strict=True)]
        self._widths = widths
        self._memory_blocks = MEMORY_POOLS * slots
        self._special = special_kinds
        self.exposed = [[0.0] * BINS for _ in range(kinds)]
        """Blocks that reached the beginning of each bin without coming back."""
        self.returned = [[0.0] * BINS for _ in range(kinds)]
        """Blocks that came back in each bin."""
        self._visits = 0.0
        self._exposed_up_to = [0] * BINS
        """By bin of age: visits before this one have been counted there."""
        first = PRIOR_RETURNS * widths[0] / widths[1]  # it is wider than its ratio to the second one
        self._index = [gittins([first] + [PRIOR_RETURNS] * (BINS - 1), widths)] * kinds

    def value(self, kind: int, age: int) -> float:
        """Return the expected blocks that come back per slot and block touched."""
        return self._index[kind][self._bin(age)]

    def value_at_birth(self, kind: int) -> float:
        """Return the value of a visit that has just ended."""
        return self._index[kind][0]

    def expose(self, visits: Visits, now: int) -> None:
        """Count the blocks of visits that have reached another bin. Every visit is met once in each bin."""
        born, cached, gone, kinds, size = visits.born, visits.cached, visits.gone, visits.kind, visits.size
        for age_bin, edge in enumerate(self.edges):
            visit = max(self._exposed_up_to[age_bin], visits.next - size)
            latest = now - edge
            while visit < visits.next and born[visit % size] <= latest:
                row = visit % size
                blocks = cached[row] + gone[row]
                if blocks:
                    self.exposed[kinds[row]][age_bin] += blocks
                    if not age_bin and kinds[row] >= self._special:
                        self._visits += 1
                visit += 1
            self._exposed_up_to[age_bin] = visit

    def give_back(self, kind: int, age: int, blocks: int) -> None:
        """Take note that blocks came back."""
        self.returned[kind][self._bin(age)] += blocks

    def _bin(self, age: int) -> int:
        if age < self._first_edge:
            return 0
        return min(BINS - 1, 1 + int(math.log(age / self._first_edge) * _BINS_PER_E))

    def refit(self) -> None:
        """Compute the index anew. Kinds with few observations are drawn to the shape that all share."""
        ordinary = range(self._special, len(self.exposed))
        visit_blocks = max(1.0, sum(self.exposed[kind][0] for kind in ordinary) / max(1.0, self._visits))
        weight = PRIOR_VISITS * visit_blocks
        shared = []
        chance = PRIOR_RETURNS
        for age_bin in range(BINS):
            returned = sum(self.returned[kind][age_bin] for kind in ordinary)
            exposed = max(returned, sum(self.exposed[kind][age_bin] for kind in ordinary))
            # An age that nobody has reached yet is taken to be like the one before it, but not better than at first:
            # where all came back sooner, only what never does will get there.
            chance = (returned + min(chance, PRIOR_RETURNS) * visit_blocks) / (exposed + visit_blocks)
            shared.append(chance)
        self._index = [
            gittins(_shrunk(returned, exposed, shared, visit_blocks, weight), self._widths)
            for returned, exposed in zip(self.returned, self.exposed, strict=True)
        ]
        if sum(self.exposed[kind][0] for kind in ordinary) > self._memory_blocks:
            self._fade()

    def _fade(self) -> None:
        self._visits /= 2
        for rows in (self.exposed, self.returned):
            rows[:] = [[blocks / 2 for blocks in row] for row in rows]


def _shrunk(
    returned: Sequence[float], exposed: Sequence[float], shared: Sequence[float], visit_blocks: float, weight: float
) -> list[float]:
    """Return a kind's chance to come back in each bin: its own, and where it has seen little the scaled shared one."""
    # What came back was there, also if that was before the next count of who reached which age.
    there = [max(blocks, back) for blocks, back in zip(exposed, returned, strict=True)]
    expected = sum(chance * blocks for chance, blocks in zip(shared, there, strict=True))
    scale = (sum(returned) + visit_blocks) / (expected + visit_blocks)
    return [
        min(CHANCE_MAX, (back + weight * scale * chance) / (blocks + weight))
        for back, blocks, chance in zip(returned, there, shared, strict=True)
    ]


def gittins(chances: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Return the index at each bin: the steepest slope from there to any later point of returns against time held.

    The points that can be the steepest are the upper hull of those to the right, kept on a stack.
    """
    held, returns = [0.0], [0.0]
    left = 1.0
    for chance, width in zip(chances, widths, strict=True):
        staying = left * (1 - chance)
        held.append(held[-1] + (left + staying) / 2 * width)
        returns.append(returns[-1] + left - staying)
        left = staying

    def slope(begin: int, end: int) -> float:
        return (returns[end] - returns[begin]) / (held[end] - held[begin])

    index = [0.0] * len(chances)
    hull = [len(chances)]
    for begin in range(len(chances) - 1, -1, -1):
        while len(hull) > 1 and slope(begin, hull[-1]) <= slope(begin, hull[-2]):
            hull.pop()
        index[begin] = slope(begin, hull[-1])
        hull.append(begin)
    return index
