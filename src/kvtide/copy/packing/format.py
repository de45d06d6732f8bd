"""The packed format, defined bit for bit: bfloat16 in 12.125 bits instead of 16, and nothing lost.

Sign and mantissa are kept as they are. Of the exponent, which is 8 bits and nearly the same everywhere, 4 are kept: how
far it is below the largest of its group. A *tile* is 1,024 values in four groups of 256, and packs into 1,552 bytes:

    bytes      what
    0-3        the largest exponent of each group
    4-15       escapes: exponents that 4 bits do not say, in the order of their codes; 0 where there are fewer than 12
    16-527     sign and mantissa of groups 0 and 1: a byte of group 0, the same place in group 1, the next of group 0, …
    528-1039   the same of groups 2 and 3
    1040-1551  codes, for each place in the groups two bytes: group 0 in the low and 1 in the high half of the first,
               2 and 3 in the second

    code       exponent
    0-13       so much below the largest of the group
    14         0 (zeros, and numbers next to zero), where it is 14 or more below
    15         the next escape

So the four values that a place has in the groups lie next to one another, and whoever packs two values in one machine
word, as the kernels do, never has to move anything across words.

A tile with more than 12 escapes does not fit. It is not packed: what is written for it must not be read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

VERSION = 1
"""Counts up when the same values become other bytes: packed bytes of two versions must never meet."""
NAMESPACE_PART = ("kvtide.packing", f"bf16/{VERSION}")
"""Part of the namespace of packed blocks in every tier, so that they never meet plain ones, or another version's."""
TILE_VALUES = 1024
TILE_BYTES = 1552
GROUPS = 4
GROUP_VALUES = TILE_VALUES // GROUPS
ESCAPES_MAX = 12
_ESCAPES_AT, _SIGNS_AT, _CODES_AT = 4, 16, 1040
_CODE_ZERO, _CODE_ESCAPE = 14, 15

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.uint16]
"""bfloat16, as bits."""


class PackedTiles(NamedTuple):
    """Tiles, packed."""

    tiles: Bytes
    """A row of 1,552 bytes for each."""
    fits: npt.NDArray[np.bool_]
    """Whether it could be packed."""


def pack_tiles(values: Values) -> PackedTiles:
    """Pack tiles, a row of 1,024 values each."""
    grouped = values.reshape(-1, GROUPS, GROUP_VALUES)
    exponents = (grouped >> 7 & 0xFF).astype(np.uint8)
    largest = exponents.max(axis=2)
    below = largest[:, :, None] - exponents
    codes = np.where(below < _CODE_ZERO, below, np.where(exponents == 0, _CODE_ZERO, _CODE_ESCAPE)).astype(np.uint8)
    signs = (grouped >> 8 & 0x80 | grouped & 0x7F).astype(np.uint8)
    escaped = _by_place(codes) == _CODE_ESCAPE

    tiles = np.zeros((len(grouped), TILE_BYTES), dtype=np.uint8)
    tiles[:, :_ESCAPES_AT] = largest
    rank = np.cumsum(escaped, axis=1, dtype=np.int16) - 1
    tile, at = np.nonzero(escaped & (rank < ESCAPES_MAX))
    tiles[tile, _ESCAPES_AT + rank[tile, at]] = _by_place(exponents)[tile, at]
    tiles[:, _SIGNS_AT:_CODES_AT] = np.hstack([_by_place(signs[:, :2]), _by_place(signs[:, 2:])])
    halves = _by_place(codes).reshape(len(tiles), TILE_VALUES // 2, 2)
    tiles[:, _CODES_AT:] = halves[:, :, 0] | halves[:, :, 1] << 4
    return PackedTiles(tiles, escaped.sum(axis=1) <= ESCAPES_MAX)


def unpack_tiles(tiles: Bytes) -> Values:
    """Return the values of packed tiles that fit, bit for bit."""
    count = len(tiles)
    halves = tiles[:, _CODES_AT:]
    codes = np.stack([halves & 15, halves >> 4], axis=2).reshape(count, TILE_VALUES)
    escaped = codes == _CODE_ESCAPE
    rank = np.cumsum(escaped, axis=1, dtype=np.int16) - 1
    known = np.pad(tiles[:, _ESCAPES_AT:_SIGNS_AT], [(0, 0), (0, 1)])  # no escape after the last says more than 0
    escapes = np.take_along_axis(known, np.minimum(rank * escaped, ESCAPES_MAX), axis=1)
    largest = np.tile(tiles[:, :_ESCAPES_AT], GROUP_VALUES)
    exponents = np.where(escaped, escapes, np.where(codes == _CODE_ZERO, 0, largest - codes))
    planes = tiles[:, _SIGNS_AT:_CODES_AT].reshape(count, 2, GROUP_VALUES, 2)
    signs = planes.swapaxes(1, 2).reshape(count, TILE_VALUES).astype(np.uint16)
    values = ((signs & 0x80) << 8 | exponents.astype(np.uint16) << 7 | signs & 0x7F).astype(np.uint16)
    return values.reshape(count, GROUP_VALUES, GROUPS).swapaxes(1, 2).reshape(count, TILE_VALUES)


def _by_place(of_groups: Bytes) -> Bytes:
    """Return rows of groups as one row: what all groups have at place 0, then at place 1, and so on."""
    count, groups, places = of_groups.shape
    return of_groups.swapaxes(1, 2).reshape(count, groups * places)
