"""Attention groups: what a request needs on the device to go on from a boundary.

Every rule has the same shape. To resume at token `boundary` a group needs its blocks
`[first_needed(boundary), boundary // block_tokens)`; older ones may be missing. A prefix is a hit only where
*every* group can resume, so boundaries are multiples of all block sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Key = bytes
"""Content hash of a block and everything before it. Unique within one group."""

NULL_BLOCK = 0
"""Device block 0 is never allocated. In a block table it stands for a block that is not needed any more."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one rule of what a request needs to resume."""

    block_tokens: int

    def first_needed(self, boundary: int) -> int:
        """Index of the first block that must be there to compute the token at `boundary`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FullAttention(Group):
    """Every token attends to all tokens before it: the whole prefix is needed."""

    def first_needed(self, boundary: int) -> int:
        """Return 0: everything is needed."""
        return 0


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


def common_boundary(groups: Sequence[Group]) -> int:
    """Return the smallest number of tokens whose multiples end a block in every group."""
    return math.lcm(*(group.block_tokens for group in groups))


def longest_resumable(
    groups: Sequence[Group], floor: int, limit: int, present: Callable[[int, int], bool]
) -> int:
    """Return the largest common boundary in `[floor, limit]` from which every group can resume.

    `present(group_index, block_index)` says whether a block is there; blocks that end at or before `floor` are
    taken as there. `floor` is returned when nothing beyond it works. Each group can only lower the boundary,
    so going round until nobody objects finds the largest one that suits all.
    """
    step = common_boundary(groups)
    boundary = limit // step * step
    agreed = 0
    while boundary > floor and agreed < len(groups):
        agreed = 0
        for index, group in enumerate(groups):
            lower = _longest_for_group(group, index, step, floor, boundary, present)
            if lower < boundary:
                boundary = lower
                break
            agreed += 1
    return max(boundary, floor)


def _longest_for_group(
    group: Group, index: int, step: int, floor: int, boundary: int, present: Callable[[int, int], bool]
) -> int:
    """Lower `boundary` until `group` can resume there.

    A missing block `i` rules out every boundary after its beginning that needs it, and `first_needed` never
    falls as the boundary rises: so the next candidate ends at or before block `i`, and no block is looked at twice.
    """
    while boundary > floor:
        first = max(group.first_needed(boundary), floor // group.block_tokens)
        for block in range(boundary // group.block_tokens - 1, first - 1, -1):
            if not present(index, block):
                boundary = block * group.block_tokens // step * step
                break
        else:
            return boundary
    return floor
