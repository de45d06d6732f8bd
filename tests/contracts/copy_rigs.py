"""Rigs of copy engines whose bytes are in memory that numpy sees."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvtide.copy import CopyEngine, HostArena
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
