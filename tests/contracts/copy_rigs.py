"""Rigs of copy engines whose bytes are in memory that numpy sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kvtide.copy import CopyEngine, HostArena
from kvtide.copy.packing import TILE_VALUES, BlockPacking
from kvtide.copy.row_table import RowTable
from kvtide.copy.unpacked import UnpackedRows
from tests.contracts.copy_contract import Rig, Shape


class ArenaRig(Rig):
    """The host's side is an arena."""

    def __init__(self, engine: CopyEngine, shape: Shape, arena: HostArena) -> None:
        super().__init__(engine, shape)
        self.arena = arena

    def read_slot(self, slot: int) -> bytes:
        content: bytes = self.arena.memory[slot].tobytes()
        return content

    def write_slot(self, slot: int, content: bytes) -> None:
        self.arena.memory[slot] = np.frombuffer(content, np.uint8)


def in_tiles(shape: Shape) -> Shape:
    """Return a shape like this one whose fragments are whole tiles of packed blocks."""
    return replace(shape, fragments=tuple(2 * TILE_VALUES * min(4, 1 + size // 64) for size in shape.fragments))


class PackedSlots:
    """Packed slots, and rows for what does not pack, as bytes of whole blocks."""

    def __init__(self, shape: Shape, rows: int | None = None) -> None:
        self.packing = BlockPacking(shape.fragments)
        self.arena = HostArena(shape.slots, self.packing.packed_bytes)
        table = RowTable(shape.slots, 0) if rows == 0 else None
        self.unpacked = UnpackedRows(HostArena(rows or shape.slots, shape.block_bytes), shape.slots, table)

    def read(self, slot: int) -> bytes:
        row = int(self.unpacked.rows_of(np.array([slot]))[0])
        if row >= 0:
            content: bytes = self.unpacked.arena.memory[row].tobytes()
            return content
        return self.packing.unpack(self.arena.memory[[slot]]).tobytes()

    def write(self, slot: int, content: bytes) -> None:
        self.unpacked.forget(np.array([slot]))
        rows, fits = self.packing.pack(np.frombuffer(content, np.uint8)[None])
        if fits[0]:
            self.arena.memory[slot] = rows[0]
        else:
            assert self.unpacked.place(np.array([slot])) == []
            row = int(self.unpacked.rows_of(np.array([slot]))[0])
            self.unpacked.arena.memory[row] = np.frombuffer(content, np.uint8)

    def close(self) -> None:
        self.arena.close()
        self.unpacked.arena.close()


class ArrayRig(ArenaRig):
    """The device's side is one array per region: a row for each block, with padding behind the fragment."""

    arrays: list[npt.NDArray[np.uint8]]

    def read_block(self, block: int) -> bytes:
        pairs = zip(self.arrays, self.shape.fragments, strict=True)
        return b"".join(array[block, :fragment].tobytes() for array, fragment in pairs)

    def write_block(self, block: int, content: bytes) -> None:
        begin = 0
        for array, fragment in zip(self.arrays, self.shape.fragments, strict=True):
            array[block, :fragment] = np.frombuffer(content[begin : begin + fragment], np.uint8)
            begin += fragment

    def read_padding(self) -> bytes:
        pairs = zip(self.arrays, self.shape.fragments, strict=True)
        return b"".join(array[:, fragment:].tobytes() for array, fragment in pairs)
