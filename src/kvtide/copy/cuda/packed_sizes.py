"""What transfers of packed blocks leave to be done, and what they have moved."""

from __future__ import annotations

from typing import NamedTuple

from kvtide.copy.cuda.lane_parts import Issued
from kvtide.copy.ids import Ids
from kvtide.copy.move import Moved
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.unpacked import UnpackedRows


class Rest(NamedTuple):
    """Blocks of a store that do not pack."""

    blocks: Ids
    rows: Ids
    """Where each of them goes."""
    not_kept: tuple[int, ...]
    """Slots of those that go nowhere, because there is no row left."""


class Sizes:
    """The sizes of blocks, packed and not, and the place of those that do not pack."""

    def __init__(
        self,
        block_bytes: int,
        slot_bytes: int,
        unpacked: UnpackedRows | None,
        trial: PackingTrial | None = None,
    ) -> None:
        self._trial = trial
        self._block_bytes, self._slot_bytes = block_bytes, slot_bytes
        self._unpacked = unpacked

    def rest_of(self, issued: Issued, *, may_copy: bool) -> Rest | None:
        """Give rows to the blocks of a transfer that did not fit. None: all did. To be called once for each store.

        `may_copy`: if not, they go nowhere.
        """
        if issued.flags is None or self._unpacked is None:
            return None
        blocks, slots = issued.flags.unfit()
        self._unpacked.habit.seen(len(issued.flags.blocks), len(blocks))
        if self._trial is not None:
            self._trial.seen(len(issued.flags.blocks), len(blocks))
        if not len(blocks):
            return None
        not_kept = self._unpacked.place(slots) if may_copy else slots.tolist()
        rows = self._unpacked.rows_of(slots)
        there = rows >= 0
        return Rest(blocks[there], rows[there], tuple(not_kept))

    def moved(self, blocks: int, issued: Issued, rest: Rest | None) -> Moved:
        """Return what a transfer of so many blocks has moved. `issued`: what was issued last of it."""
        if self._unpacked is None:
            return Moved(blocks * self._block_bytes)
        less = self._block_bytes - self._slot_bytes
        if issued.not_kept is not None:
            return Moved(issued.rows * self._block_bytes, 0, blocks, issued.not_kept)
        if rest is None:  # what a load has not from slots it has from rows
            packed = blocks - issued.rows
            return Moved(packed * self._slot_bytes + issued.rows * self._block_bytes, packed * less)
        unfit = len(rest.blocks) + len(rest.not_kept)
        nbytes = blocks * self._slot_bytes + len(rest.blocks) * self._block_bytes
        return Moved(nbytes, (blocks - unfit) * less, unfit, rest.not_kept)
