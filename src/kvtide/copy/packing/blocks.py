"""Whole blocks in the packed format: all of one size, and those that do not fit are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvtide.copy.packing.format import TILE_BYTES, TILE_VALUES, Bytes, pack_tiles, unpack_tiles
from kvtide.errors import ConfigError
from kvtide.options import parse_count

PLAIN_TILE_BYTES = 2 * TILE_VALUES


def whole_tiles_bytes(fragment_bytes: Iterable[int]) -> int:
    """Return the bytes of a packed block whose fragments are whole tiles, as copy engines want them: no padding."""
    sizes = list(fragment_bytes)
    for size in sizes:
        if size % PLAIN_TILE_BYTES:
            raise ConfigError("packing", f"fragments of {size} bytes", f"multiples of {PLAIN_TILE_BYTES} bytes")
    return sum(sizes) // PLAIN_TILE_BYTES * TILE_BYTES


class PackedRows(NamedTuple):
    """Blocks, packed."""

    rows: Bytes
    """A row of `packed_bytes` for each."""
    fits: npt.NDArray[np.bool_]
    """Whether it could be packed. What is written for one that could not must not be read."""


class BlockPacking:
    """Packs blocks of bfloat16 that have fragments of these sizes, side by side as in a host slot.

    Each fragment begins a tile of its own, and its last tile is filled up with zeros, so every tile of a block has
    one place on the device.
    """

    def __init__(self, fragment_bytes: Sequence[int]) -> None:
        for size in fragment_bytes:
            parse_count("fragment_bytes", size)
            if size % 2:
                raise ConfigError("fragment_bytes", size, "values of 2 bytes")
        self.tiles = tuple(-(-size // PLAIN_TILE_BYTES) for size in fragment_bytes)
        """Tiles of each fragment."""
        self.block_bytes = sum(fragment_bytes)
        self.packed_bytes = sum(self.tiles) * TILE_BYTES
        self._filled = np.concatenate(
            [np.arange(tiles * PLAIN_TILE_BYTES) < size for tiles, size in zip(self.tiles, fragment_bytes, strict=True)]
        )
        """Which bytes of a block's tiles are its own."""

    @property
    def ratio(self) -> float:
        """How many times smaller a packed block is."""
        return self.block_bytes / self.packed_bytes

    def pack(self, rows: Bytes) -> PackedRows:
        """Pack blocks, a row of `block_bytes` each."""
        plain = np.zeros((len(rows), len(self._filled)), dtype=np.uint8)
        plain[:, self._filled] = rows
        tiles, fits = pack_tiles(plain.view(np.uint16).reshape(-1, TILE_VALUES))
        all_fit = np.logical_and.reduce(fits.reshape(len(rows), sum(self.tiles)), axis=1)
        return PackedRows(tiles.reshape(len(rows), self.packed_bytes), all_fit)

    def unpack(self, rows: Bytes) -> Bytes:
        """Return blocks that were packed and fit, bit for bit."""
        plain = unpack_tiles(rows.reshape(-1, TILE_BYTES)).view(np.uint8).reshape(len(rows), len(self._filled))
        return np.compress(self._filled, plain, axis=1)
