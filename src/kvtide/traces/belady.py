"""Belady's bound: the most hits that any policy could have, knowing the future.

The block that is used again last leaves first. A block is never used later than those that continue it, and at equal
times the one further from the beginning leaves first, so that what is left is always whole prefixes. New blocks may
leave at once: that is the best admission.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from heapq import heappop, heappush

NEVER = 1 << 60


def belady_hits(prompts: Sequence[Sequence[Hashable]], slots: int) -> int:
    """Return how many blocks hit, where one hits only if all before it in the same prompt do."""
    next_use = _next_uses(prompts)
    cached: dict[Hashable, int] = {}
    heap: list[tuple[int, int, Hashable]] = []
    hits = 0
    for prompt, following in zip(prompts, next_use, strict=True):
        there = True
        for depth, block in enumerate(prompt):
            there = there and block in cached
            hits += there
            cached[block] = following[depth]
            heappush(heap, (-following[depth], -depth, block))
        while len(cached) > slots:
            due, _, block = heappop(heap)
            if cached.get(block) == -due:
                del cached[block]
    return hits


def _next_uses(prompts: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Return, for each block of each prompt, the number of the next prompt that has it."""
    seen: dict[Hashable, int] = {}
    next_use: list[list[int]] = []
    for number in range(len(prompts) - 1, -1, -1):
        next_use.append([seen.get(block, NEVER) for block in prompts[number]])
        seen.update(dict.fromkeys(prompts[number], number))
    next_use.reverse()
    return next_use
