"""A chain: consecutive blocks of one prefix in one group, head first."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtide.core.groups import Key


@dataclass(slots=True)
class Chain:
    """Blocks that are to be stored, or are being stored."""

    group: int
    keys: list[Key]
    parent: Key | None
    """Key of the block before the first one; None at the beginning of a prefix."""
    end_tokens: int
    """Length of the prefix up to the end of the first block."""
    blocks: list[int] = field(default_factory=list)
    """Device blocks, one per key; empty while they are not looked up yet."""
    slots: list[int] = field(default_factory=list)
    """Host slots, one per key; empty while they are not assigned yet."""
    anchor: int | None = None
    """Slot of the parent, pinned until this chain is settled."""

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, first: int, last: int, block_tokens: int) -> Chain:
        """Return the blocks `[first, last)` as a chain of their own."""
        return Chain(
            group=self.group,
            keys=self.keys[first:last],
            parent=self.keys[first - 1] if first else self.parent,
            end_tokens=self.end_tokens + first * block_tokens,
            blocks=self.blocks[first:last],
        )
