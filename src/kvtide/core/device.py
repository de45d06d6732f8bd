"""The device pool as kvtide sees it: the engine allocates, kvtide may look, pin and unpin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from kvtide.core.groups import Key


class BlockContent(NamedTuple):
    """What a device block holds."""

    group: int
    key: Key
    parent: Key | None
    """Key of the block before it in the same prefix; None for the first block, or when unknown."""
    end_tokens: int
    """Number of tokens of the prefix up to the end of this block."""


class FreeBlock(NamedTuple):
    """A block in the device's free queue."""

    block: int
    content: BlockContent | None
    """What it still holds, or None: nothing worth keeping."""
    cursor: int
    """Stands for this stay of the block in the free queue and for no other."""


class DevicePool(Protocol):
    """Implemented by the engine. Calls come from the scheduler's thread, inside kvtide's own calls only."""

    def find(self, group: int, key: Key) -> int | None:
        """Return a block that holds `key`, or will hold it before the next plan's copies run; None if none does.

        A found block may be in use or in the free queue. It stays findable until it is given to someone else.
        """

    def pin(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block. A free block leaves the free queue and its count."""

    def unpin(self, blocks: Sequence[int]) -> None:
        """Return references taken by `pin`. Blocks without any reference go back to the free queue.

        Best to where they came from: a pool that appends them makes lazy mode go through its whole queue in time.
        """

    def walk_free(self, after: int | None) -> Iterator[FreeBlock] | None:
        """Iterate over the free queue, next victim first, starting behind the block that had cursor `after`.

        Returns None when that block has left the free queue since, even if it has come back: the caller then
        starts again from the beginning (`after=None`).
        """

    def free_ahead(self, cursor: int) -> int:
        """Return at least how many blocks are in the free queue up to the one that had `cursor`, itself included.

        A lower bound is enough (blocks that entered before it, less all that have left); 0 when it has left.
        """
