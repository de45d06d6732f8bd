"""Where the blocks of host slots are, for those who put them below and bring them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol


class Places(Protocol):
    """Knows where the block of each slot is. A block may be kept in one of several forms, which differ in length."""

    @property
    def forms(self) -> int:
        """How many there are."""

    @property
    def more_memory(self) -> memoryview | None:
        """Memory that blocks may be in besides the slots."""

    def held(self, slots: Sequence[int]) -> list[memoryview | None]:
        """Return the memory that has the block of each slot; None: that is not known."""

    def offered(self, slots: Sequence[int], form: int) -> list[memoryview | None]:
        """Return where the block of each slot can come to in this form; None: there is no place for it.

        What was offered before is taken back. Forms are tried one after the other, from 0 on.
        """

    def arrived(self, blocks: int, form: int) -> None:
        """Take note that so many blocks have come in this form."""

    def missed(self, slots: Iterable[int]) -> None:
        """Take back what was offered for these slots: no block has come."""


class InSlots:
    """Every block is in its slot: `memory` returns the bytes of one."""

    forms = 1
    more_memory = None

    def __init__(self, memory: Callable[[int], memoryview]) -> None:
        self._memory = memory

    def held(self, slots: Sequence[int]) -> list[memoryview | None]:
        """See `Places`."""
        return list(map(self._memory, slots))

    def offered(self, slots: Sequence[int], form: int) -> list[memoryview | None]:
        """See `Places`."""
        return self.held(slots)

    def arrived(self, blocks: int, form: int) -> None:
        """See `Places`."""

    def missed(self, slots: Iterable[int]) -> None:
        """See `Places`."""
