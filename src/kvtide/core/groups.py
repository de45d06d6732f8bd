"""Attention groups: what a request needs on the device to go on from a boundary.

Every rule has the same shape. To resume at token `boundary` a group needs its blocks
`[first_needed(boundary), boundary // block_tokens)`; older ones may be missing. A prefix is a hit only where
*every* group can resume, so boundaries are multiples of all block sizes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Key = bytes
"""Content hash of a block and everything before it. Unique within one group."""

NULL_BLOCK = 0
"""Device block 0 is never allocated. In a block table it stands for a block that is not needed any more."""


Present = Callable[[int], bool]
"""Says whether the block with this index is there."""


@dataclass(frozen=True, slots=True)
class Group(ABC):
    """Layers that share one rule of what a request needs to resume."""

    block_tokens: int

    @abstractmethod
    def first_needed(self, boundary: int) -> int:
        """Index of the first block that must be there to compute the token at `boundary`. Never falls."""

    def can_resume_at(self, boundary: int) -> bool:
        """Whether what a block holds is of use to a request that resumes at `boundary`, be it inside the block."""
        return True

    def longest(self, floor: int, boundary: int, step: int, present: Present) -> int:
        """Return the largest multiple of `step` up to `boundary`, or `floor`, from which this group can resume.

        A missing block rules out every boundary behind its beginning down to the one at it, because
        `first_needed` never falls as the boundary rises: so no block is looked at twice.
        """
        while boundary > floor:
            first = max(self.first_needed(boundary), floor // self.block_tokens)
            for block in range(boundary // self.block_tokens - 1, first - 1, -1):
                if not present(block):
                    boundary = block * self.block_tokens // step * step
                    break
            else:
                return boundary
        return floor


@dataclass(frozen=True, slots=True)
class FullAttention(Group):
    """Every token attends to all tokens before it: the whole prefix is needed."""

    def first_needed(self, boundary: int) -> int:
        """Return 0: everything is needed."""
        return 0

    def longest(self, floor: int, boundary: int, step: int, present: Present) -> int:
        """Look from the front: the first missing block ends the prefix, so a miss is found at once."""
        for block in range(floor // self.block_tokens, boundary // self.block_tokens):
            if not present(block):
                return max(floor, block * self.block_tokens // step * step)
        return boundary


@dataclass(frozen=True, slots=True)
class SlidingWindow(Group):
    """A token attends to itself and the `window_tokens - 1` tokens before it."""

    window_tokens: int

    def first_needed(self, boundary: int) -> int:
        """Index of the block that holds the oldest token in the window of the token at `boundary`."""
        return max(0, boundary - self.window_tokens + 1) // self.block_tokens


@dataclass(frozen=True, slots=True)
class ChunkedLocal(Group):
    """A token attends to the tokens of its own chunk: right after a chunk ends, nothing is needed."""

    chunk_tokens: int

    def first_needed(self, boundary: int) -> int:
        """Index of the block in which the chunk of the token at `boundary` begins."""
        return boundary // self.chunk_tokens * self.chunk_tokens // self.block_tokens


@dataclass(frozen=True, slots=True)
class StateSpace(Group):
    """One state per boundary (Mamba-like): block `i` is the state after `(i + 1) * block_tokens` tokens."""

    def first_needed(self, boundary: int) -> int:
        """Index of the one state at `boundary`."""
        return max(0, boundary // self.block_tokens - 1)

    def can_resume_at(self, boundary: int) -> bool:
        """Only where a state ends: one that lies further on has seen tokens that are not computed yet."""
        return boundary % self.block_tokens == 0


def common_boundary(groups: Sequence[Group]) -> int:
    """Return the smallest number of tokens whose multiples end a block in every group."""
    return math.lcm(*(group.block_tokens for group in groups))


def longest_resumable(
    groups: Sequence[Group], floor: int, limit: int, present: Sequence[Present], step: int | None = None
) -> int:
    """Return the largest common boundary in `[floor, limit]` from which every group can resume.

    `present[i](block)` answers for group `i`. Blocks that end at or before `floor` are taken as there, and
    `floor` is returned when nothing beyond it works. Each group can only lower the boundary, so going round
    until nobody objects finds the largest one that suits all. `step` is the common boundary, unless given.
    """
    step = step or common_boundary(groups)
    boundary = max(floor, limit // step * step)
    while boundary > floor:
        asked = boundary
        for group, is_present in zip(groups, present, strict=True):
            boundary = group.longest(floor, boundary, step, is_present)
        if boundary == asked:
            break
    return boundary
