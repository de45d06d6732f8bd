"""A chain: consecutive blocks of one prefix in one group, head first."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtide.core.groups import Key


@dataclass(slots=True)
class Chain:
    """Blocks on their way to the host, from the device or from below."""

    group: int
    keys: list[Key]
    parent: Key | None
    """Key of the block before the first one; None at the beginning of a prefix."""
    end_tokens: int
    """Length of the prefix up to the end of the first block."""
    blocks: list[int] = field(default_factory=list)
    """Device blocks, one per key; empty for what comes from below."""
    slots: list[int] = field(default_factory=list)
    """Host slots, one per key, once it is being written."""
    life: int = 0
    """Where a shared index has granted the slots: in which life of the connection."""
    anchor: int | None = None
    """Slot of the parent, pinned until this chain is settled."""
    filled: bool = True
    """Whether the device blocks are the request's own, computed by earlier steps.

    If not they are looked up by key. Engines such as vLLM give a block its key when they schedule the step that fills
    it, and that may be the step which is being planned.
    """

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
            filled=self.filled,
        )
