"""What the layers of a simulated model read: the simulator's own rules, token by token, nothing shared with the core.

A token at some position attends to earlier ones, which lie in blocks. That is all there is to say: which blocks must be
there to go on from a position, which are never needed again, and where a prefix can be resumed follow by looking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

TOKENS_MAX = 64
"""No sequence of a world is as long as this."""


@dataclass(frozen=True, slots=True)
class Attention(ABC):
    """One kind of layers. KV is kept in blocks of `block_tokens`."""

    block_tokens: int

    @abstractmethod
    def attends(self, position: int, earlier: int) -> bool:
        """Whether the token at `position` reads what was kept of the token at `earlier`, which comes before it."""

    @property
    def forgets(self) -> bool:
        """Whether some blocks are not needed any more at some time."""
        return first_blocks(self)[-1] > 0


@dataclass(frozen=True, slots=True)
class Full(Attention):
    """Reads everything."""

    def attends(self, position: int, earlier: int) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class Sliding(Attention):
    """Reads the last `window_tokens` tokens, itself among them."""

    window_tokens: int

    def attends(self, position: int, earlier: int) -> bool:
        """Count the tokens from `earlier` to `position`, both included."""
        return position - earlier + 1 <= self.window_tokens


@dataclass(frozen=True, slots=True)
class Chunked(Attention):
    """Reads the tokens of its own chunk."""

    chunk_tokens: int

    def attends(self, position: int, earlier: int) -> bool:
        """Compare chunks."""
        return position // self.chunk_tokens == earlier // self.chunk_tokens


@dataclass(frozen=True, slots=True)
class State(Attention):
    """Reads one state, kept in the block that was full last, and what came after it."""

    def attends(self, position: int, earlier: int) -> bool:
        """Whether `earlier` lies in that block or behind it."""
        return earlier // self.block_tokens >= position // self.block_tokens - 1


Layout = tuple[Attention, ...]


@lru_cache(maxsize=4096)
def first_blocks(attention: Attention) -> tuple[int, ...]:
    """Return for each position the first block that must be there to compute the token at it; those after it too."""
    size = attention.block_tokens
    firsts = []
    for position in range(TOKENS_MAX + 1):
        read = [earlier // size for earlier in range(position) if attention.attends(position, earlier)]
        firsts.append(min(read, default=position // size))
    return tuple(firsts)


def blocks_to_resume(attention: Attention, position: int) -> range:
    """Return the full blocks that must be there to go on from `position`."""
    return range(first_blocks(attention)[position], position // attention.block_tokens)


def common_multiple(groups: Layout) -> int:
    """Return the smallest number of tokens that fills whole blocks of every group."""
    tokens = 1
    while any(tokens % group.block_tokens for group in groups):
        tokens += 1
    return tokens


class Boundaries:
    """Where requests of one model can be resumed: at whole blocks of all groups, if what each needs is there."""

    def __init__(self, groups: Layout) -> None:
        self.step = common_multiple(groups)
        self._sizes = [group.block_tokens for group in groups]
        self._needed = {
            position: [blocks_to_resume(group, position) for group in groups]
            for position in range(0, TOKENS_MAX + 1, self.step)
        }

    def longest(self, floor: int, limit: int, there: Sequence[list[bool]]) -> int:
        """Return the longest prefix of at most `limit` tokens that all groups can go on from; `floor` if there is none.

        `there` says of each group's blocks which are there, as far as it goes; what lies before `floor` is. Prefixes
        are tried one by one.
        """
        for size, blocks in zip(self._sizes, there, strict=True) if floor else ():
            blocks[: floor // size] = [True] * (floor // size)
        for position in range(limit // self.step * self.step, floor, -self.step):
            for blocks, needed in zip(there, self._needed[position], strict=True):
                if blocks[needed.start : needed.stop].count(True) < len(needed):
                    break
            else:
                return position
        return floor


boundaries_of = lru_cache(maxsize=1024)(Boundaries)
"""Many worlds have the same groups."""
