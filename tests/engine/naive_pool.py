"""A block pool that is slow and obviously right."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtide.core.device import BlockContent
from kvtide.core.groups import Key


@dataclass
class NaivePool:
    """The free queue is a plain list; everything else is recomputed whenever it is asked for."""

    num_blocks: int
    queue: list[int] = field(default_factory=list)
    taken: dict[int, int] = field(default_factory=dict)
    pinned: dict[int, int] = field(default_factory=dict)
    content: dict[int, BlockContent] = field(default_factory=dict)
    lent: dict[int, int] = field(default_factory=dict)
    """Blocks that were pinned while they were free, with their label."""
    label: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = list(range(1, self.num_blocks + 1))
        self.taken = dict.fromkeys(self.queue, 0)
        self.pinned = dict.fromkeys(self.queue, 0)
        self.label = {block: block for block in self.queue}

    def allocate(self, count: int) -> list[int] | None:
        if count > len(self.queue):
            return None
        blocks, self.queue = self.queue[:count], self.queue[count:]
        for block in blocks:
            self.taken[block] = 1
            self.content.pop(block, None)
        return blocks

    def take(self, block: int) -> None:
        self._leave(block)
        self.taken[block] += 1
        self.lent.pop(block, None)

    def pin(self, block: int) -> None:
        if self._leave(block):
            self.lent[block] = self.label[block]
        self.pinned[block] += 1

    def free(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.taken[block] -= 1
            self._join(block)

    def unpin(self, blocks: list[int]) -> None:
        for block in blocks:
            self.pinned[block] -= 1
        unused = [block for block in blocks if not self._in_use(block)]
        for block in reversed([block for block in unused if block not in self.lent]):
            self._join(block)
        self.queue += [block for block in unused if self.lent.pop(block, None) is not None]
        self.queue.sort(key=self.label.__getitem__)

    def _in_use(self, block: int) -> bool:
        return self.taken[block] + self.pinned[block] > 0

    def _leave(self, block: int) -> bool:
        if block not in self.queue:
            return False
        self.queue.remove(block)
        return True

    def _join(self, block: int) -> None:
        if not self._in_use(block):
            labels = self.label.values()
            self.label[block] = max(labels) + 1 if block in self.content else min(labels) - 1
            self.queue.append(block)
            self.queue.sort(key=self.label.__getitem__)

    def holders(self, group: int, key: Key) -> set[int]:
        return {block for block, held in self.content.items() if (held.group, held.key) == (group, key)}

    @property
    def num_pinned(self) -> int:
        return sum(self.taken[block] == 0 < self.pinned[block] for block in self.taken)
