"""How threads copy blocks that are packed on the host.

A piece of blocks is gathered in memory that stays in the processor's cache, and packed from there into their slots; and
back. Blocks that do not pack go to rows of their own (`unpacked`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvtide.copy.arena import HostArena
from kvtide.copy.base import Direction
from kvtide.copy.ids import Ids, checked_ids
from kvtide.copy.move import BlockMover, Moved
from kvtide.copy.packing import TILE_BYTES, TILE_VALUES, whole_tiles_bytes
from kvtide.copy.packing.codec import Codec, compiled, ready
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.regions import DeviceCache
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError, CopyError

_PIECE_BYTES = 1 << 20


class PackedBlockMover:
    """Copies blocks between a device cache and packed slots, in the thread that calls.

    `codec` is made in the first thread that copies, which may take seconds, and shared by all.
    """

    def __init__(
        self,
        device: DeviceCache,
        arena: HostArena,
        unpacked: UnpackedRows,
        codec: Callable[[], Codec] = compiled,
        trial: PackingTrial | None = None,
    ) -> None:
        expected = whole_tiles_bytes(region.fragment_bytes for region in device.regions)
        if arena.slot_bytes != expected:
            raise ConfigError("slot_bytes", arena.slot_bytes, f"the bytes of one packed block, {expected}")
        self._device, self._unpacked, self._slots = device, unpacked, arena.slots
        self._tiles = arena.memory.reshape(arena.slots, -1, TILE_BYTES)
        self._plain = BlockMover(device, unpacked.arena)
        self._make_codec, self._making = codec, threading.Lock()
        self._codec: Codec | None = None
        self._of_thread = threading.local()
        self._trial = trial
        beyond = PlainSlots(trial.plain_memory()) if trial is not None else None
        self._beyond = BlockMover(device, beyond) if beyond is not None and beyond.slots else None
        """Copies to slots beyond the first ones, if blocks are not packed."""

    def move(self, direction: Direction, copy: Copy) -> Moved:
        """Move all blocks of `copy`. Where one does not exist, raises CopyError before any byte has moved."""
        blocks, slots = checked_ids(copy, blocks=self._device.blocks, slots=self._slots)
        if not len(blocks):
            return Moved()
        if self._trial is not None and self._trial.is_plain:
            return self._move_plain(direction, blocks, slots, self._trial.first)
        return self._store(blocks, slots) if direction is Direction.STORE else self._load(blocks, slots)

    def _move_plain(self, direction: Direction, blocks: Ids, slots: Ids, first: int) -> Moved:
        """Move blocks that are not packed: those of the first slots have rows, as many as there are slots."""
        beyond = slots >= first
        if beyond.any():
            if self._beyond is None:
                raise CopyError(f"slot {int(slots.max())} does not exist: there are {first}")
            self._beyond.move(direction, _pairs(blocks[beyond], slots[beyond] - first))
            blocks, slots = blocks[~beyond], slots[~beyond]
        moved = Moved()
        if len(blocks) and direction is Direction.STORE:
            self._unpacked.forget(slots)
            self._unpacked.place(slots)
            moved = self._plain.move(direction, _pairs(blocks, self._unpacked.rows_of(slots)))
        elif len(blocks):
            moved = self._load(blocks, slots)
        return moved._replace(nbytes=moved.nbytes + int(beyond.sum()) * self._device.block_bytes)

    def _store(self, blocks: Ids, slots: Ids) -> Moved:
        self._unpacked.forget(slots)
        copy_slots = slots.tolist()
        if not self._unpacked.habit.is_worth_trying():
            return self._store_unpacked(blocks, slots, packed=0)
        scratch, gather = self._scratch()
        codec = self._ready_codec()
        fits = np.empty(len(blocks), dtype=np.bool_)
        gathering_s, begin_s = 0.0, time.thread_time()  # of this thread alone, whatever else the machine does
        for first in range(0, len(blocks), len(scratch)):
            part = blocks[first : first + len(scratch)].tolist()
            since_s = time.thread_time()
            gather.move(Direction.STORE, Copy(0, tuple(part), tuple(range(len(part)))))
            gathering_s += time.thread_time() - since_s
            for row in range(len(part)):
                slot = copy_slots[first + row]
                fits[first + row] = codec.pack_into(scratch[row], self._tiles[slot]).all()
        rest = ~fits
        self._unpacked.habit.seen(len(blocks), int(rest.sum()))
        if self._trial is not None:
            packing_s = time.thread_time() - begin_s - gathering_s
            self._trial.seen(len(blocks), int(rest.sum()), copying_s=gathering_s, packing_s=packing_s)
        if rest.any():
            return self._store_unpacked(blocks[rest], slots[rest], packed=int(fits.sum()))
        return self._moved(len(blocks))

    def _store_unpacked(self, blocks: Ids, slots: Ids, *, packed: int) -> Moved:
        """Keep blocks that do not pack, or are not tried, as they are, as far as there are rows."""
        not_kept = self._unpacked.place(slots)
        rows = self._unpacked.rows_of(slots)
        kept = rows >= 0
        self._plain.move(Direction.STORE, _pairs(blocks[kept], rows[kept]))
        return self._moved(packed, unpacked=len(blocks), rows=int(kept.sum()), not_kept=tuple(not_kept))

    def _load(self, blocks: Ids, slots: Ids) -> Moved:
        rows = self._unpacked.rows_of(slots)
        there = rows >= 0
        if there.any():
            self._plain.move(Direction.LOAD, _pairs(blocks[there], rows[there]))
            blocks, slots = blocks[~there], slots[~there]
        scratch, scatter = self._scratch()
        codec = self._ready_codec()
        for first in range(0, len(blocks), len(scratch)):
            part = blocks[first : first + len(scratch)].tolist()
            for row, slot in enumerate(slots[first : first + len(part)].tolist()):
                codec.unpack_into(self._tiles[slot], scratch[row])
            scatter.move(Direction.LOAD, Copy(0, tuple(part), tuple(range(len(part)))))
        return self._moved(len(blocks), rows=int(there.sum()))

    def _moved(self, packed: int, *, unpacked: int = 0, rows: int = 0, not_kept: tuple[int, ...] = ()) -> Moved:
        small, whole = self._tiles[0].nbytes, self._device.block_bytes
        return Moved(packed * small + rows * whole, packed * (whole - small), unpacked, not_kept)

    def _scratch(self) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint16]], BlockMover]:
        """Return memory of this thread for a piece of blocks, as rows of tiles, and what moves blocks there."""
        if not hasattr(self._of_thread, "scratch"):
            arena = HostArena(max(1, _PIECE_BYTES // self._device.block_bytes), self._device.block_bytes)
            rows = arena.memory.view(np.uint16).reshape(arena.slots, -1, TILE_VALUES)
            self._of_thread.scratch = rows, BlockMover(self._device, arena)
        rows, mover = self._of_thread.scratch
        return rows, mover

    def _ready_codec(self) -> Codec:
        with self._making:
            if self._codec is None:
                self._codec = ready(self._make_codec())  # compiling is not to be measured
            return self._codec


class PlainSlots(NamedTuple):
    """Rows of bytes as an arena."""

    memory: npt.NDArray[np.uint8]

    @property
    def slots(self) -> int:
        """Rows."""
        return len(self.memory)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a row."""
        return int(self.memory.shape[1])


def _pairs(blocks: Ids, rows: Ids) -> Copy:
    return Copy(0, tuple(blocks.tolist()), tuple(rows.tolist()))
