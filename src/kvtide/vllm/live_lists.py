"""vLLM's live lists as the core wants to see them: keys and block ids of one request in one group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from kvtide.core import NULL_BLOCK, FullAttention, Group, Key, StateSpace


class CoarseKeys(Sequence[Key]):
    """Keys of blocks that are `factor` times as long as vLLM's block hashes.

    Each hash covers everything before it, so the last hash of a block stands for the block.
    """

    __slots__ = ("_factor", "_hashes")

    def __init__(self, hashes: Sequence[Key], factor: int) -> None:
        self._hashes = hashes
        self._factor = factor

    def __len__(self) -> int:
        return len(self._hashes) // self._factor

    @overload
    def __getitem__(self, index: int) -> Key: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Key]: ...
    def __getitem__(self, index: int | slice) -> Key | Sequence[Key]:
        factor = self._factor
        if isinstance(index, slice):
            first, last, step = index.indices(len(self))
            return self._hashes[(first + 1) * factor - 1 : last * factor : step * factor]
        if index < 0:
            index += len(self)
        return self._hashes[(index + 1) * factor - 1]


def keys_of(hashes: Sequence[Key], hash_tokens: int, block_tokens: int) -> Sequence[Key]:
    """Return the keys of a group's blocks. Live: they grow as `hashes` does."""
    return hashes if block_tokens == hash_tokens else CoarseKeys(hashes, block_tokens // hash_tokens)


class BlockTable(Sequence[int]):
    """The ids of a list of vLLM's block objects. Live: the list is vLLM's own."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Sequence[Any]) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [block.block_id for block in self._blocks[index]]
        return int(self._blocks[index].block_id)


class FoundTable(Sequence[int]):
    """A block table that looks blocks up by key where the position does not tell them.

    vLLM drops blocks that left their window before the connector sees the step, and reuses positions of state-space
    groups. What was computed may still be in the device's prefix cache. For stores only: a load must write to the
    request's own blocks.
    """

    __slots__ = ("_blocks", "_find", "_keys")

    def __init__(self, blocks: Sequence[int], keys: Sequence[Key], find: Callable[[Key], int | None]) -> None:
        self._blocks = blocks
        self._keys = keys
        self._find = find

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if not isinstance(index, slice):
            return self[index : index + 1][0]
        ids = list(self._blocks[index])
        if NULL_BLOCK in ids:
            keys = self._keys[index]
            for at in range(min(len(ids), len(keys))):
                if ids[at] == NULL_BLOCK:
                    ids[at] = self._find(keys[at]) or NULL_BLOCK
        return ids


class Nulls(Sequence[int]):
    """As many null blocks as there are keys: a table in which nothing has a position."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [NULL_BLOCK] * len(range(*index.indices(len(self))))
        return NULL_BLOCK


def table_for_stores(
    group: Group, blocks: Sequence[int], keys: Sequence[Key], find: Callable[[Key], int | None]
) -> Sequence[int]:
    """Return where a request's blocks are to be stored from, in one group."""
    if isinstance(group, FullAttention):
        return blocks
    return FoundTable(Nulls(keys) if isinstance(group, StateSpace) else blocks, keys, find)
