"""What the layers of a simulated model read: the simulator's own rules, token by token, nothing shared with the core.

A token at some position attends to earlier ones, which lie in blocks. That is all there is to say: which blocks must be
there to go on from a position, which are never needed again, and where a prefix can be resumed follow by looking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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
Present = Callable[[int, int], bool]
"""Says of a group and the index of a block whether it is there."""


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


def longest_resumable(groups: Layout, step: int, floor: int, limit: int, present: Present) -> int:
    """Return the longest prefix of at most `limit` tokens that all groups can go on from; `floor` if there is none.

    What lies before `floor` is there. Prefixes are tried one by one, whole blocks of all groups (`step`) at a time.
    """
    for position in range(limit // step * step, floor, -step):
        if all(
            present(index, block)
            for index, group in enumerate(groups)
            for block in blocks_to_resume(group, position)
            if (block + 1) * group.block_tokens > floor
        ):
            return position
    return floor
