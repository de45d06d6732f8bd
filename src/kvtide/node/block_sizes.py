"""What a block takes of a node's memory: a slot in each part, and where blocks are packed its share of the rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from kvtide.copy.shared_arena import front_bytes
from kvtide.node.errors import BadFrame

PARTS_MAX = 1024
SLOTS_MAX = 1 << 24
"""Of one namespace: the index takes 200 bytes for each."""
_PART_BYTES_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Of one namespace, in bytes for each part."""

    slots: tuple[int, ...]
    rows: tuple[int, ...]
    """Of a block that does not pack; 0 where blocks are not packed."""

    @property
    def parts(self) -> int:
        """How many there are."""
        return len(self.slots)

    @property
    def slot_bytes(self) -> int:
        """A slot of every part."""
        return sum(self.slots)

    def nbytes(self, slots: int) -> int:
        """Return what so many slots take, with what is in front of them."""
        return slots * self.slot_bytes + sum(front_bytes(slots, row) for row in self.rows)

    def slots_in(self, nbytes: int) -> int:
        """Return how many slots there is room for."""
        return bisect_right(range(1, min(nbytes // self.slot_bytes, SLOTS_MAX) + 1), nbytes, key=self.nbytes)


def sizes_of(description: Mapping[str, object]) -> BlockSizes:
    """Return what a namespace says of its blocks. Raises `BadFrame`."""
    slots = _sizes(description.get("parts"), "parts")
    rows = _sizes(description["rows"], "rows") if "rows" in description else (0,) * len(slots)
    if len(rows) != len(slots):
        raise BadFrame(f"a namespace of {len(slots)} parts with rows of {len(rows)}")
    return BlockSizes(slots, rows)


def _sizes(said: object, what: str) -> tuple[int, ...]:
    if not isinstance(said, list) or not 0 < len(said) <= PARTS_MAX:
        raise BadFrame(f"a namespace without {what}")
    for size in said:
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= _PART_BYTES_MAX:
            raise BadFrame(f"a namespace with {what} that have no size")
    return tuple(said)
