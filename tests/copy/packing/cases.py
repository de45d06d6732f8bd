"""Tiles that packing must bring back bit for bit, and tiles that it must say it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kvtide.copy.packing.format import GROUP_VALUES, GROUPS, TILE_VALUES, Values

NAN, HUGE, ZERO, ONE = 0x7FC1, 0x7F7F, 0x0000, 0x3F80

_PLACES = np.arange(GROUP_VALUES)


def all_patterns(exponent: int) -> Values:
    """Return 64 tiles in which each of the 256 patterns of an exponent is at every place of a group once."""
    turn, group = np.arange(64)[:, None, None], np.arange(GROUPS)[None, :, None]
    number = (_PLACES + turn + 64 * group) % 256
    return _bits(np.full_like(number, exponent), number).reshape(-1, TILE_VALUES)


def each_among_others(seed: int = 0) -> Values:
    """Return tiles of ordinary values with one of the 65,536 patterns in each group, at some place."""
    patterns = np.arange(1 << 16).reshape(-1, GROUPS)
    tiles = ordinary(len(patterns), seed)
    places = np.arange(GROUPS) * GROUP_VALUES + patterns * 37 % GROUP_VALUES
    np.put_along_axis(tiles, places, patterns.astype(np.uint16), axis=1)
    return tiles


def each_code_everywhere() -> Values:
    """Return tiles that have each code of an exponent at every place, and tiles that have an escape at every place."""
    place, turn = np.arange(TILE_VALUES)[None, :], np.arange(14)[:, None]
    codes = _bits(127 - (place + turn) % 14, place % 256)
    escapes = np.full((TILE_VALUES, TILE_VALUES), ONE, dtype=np.uint16)
    np.fill_diagonal(escapes, 0x8123)
    return np.concatenate([codes, escapes])


def ordinary(tiles: int, seed: int = 0) -> Values:
    """Return normally distributed values, as KV has them."""
    values = np.random.default_rng(seed).standard_normal((tiles, TILE_VALUES), dtype=np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def with_escapes(count: int, tiles: int, seed: int = 0) -> Values:
    """Return tiles of values near 1 with `count` tiny ones each, not one of them zero, at random places."""
    rng = np.random.default_rng(seed)
    values = _bits(rng.integers(120, 128, (tiles, TILE_VALUES)), rng.integers(0, 256, (tiles, TILE_VALUES)))
    values.reshape(tiles, GROUPS, -1)[:, :, 0] = ONE
    places = np.argsort(rng.random((tiles, TILE_VALUES - GROUPS)), axis=1)[:, :count]
    places += places // (GROUP_VALUES - 1) + 1  # not one of those that are 1
    tiny = _bits(rng.integers(1, 114, places.shape), rng.integers(0, 256, places.shape))
    np.put_along_axis(values, places, tiny, axis=1)
    return values


def _special() -> Iterator[tuple[str, Values, bool]]:
    rng = np.random.default_rng(1)

    def tile(*values: int) -> Values:
        return np.resize(np.array(values, dtype=np.uint16), (1, TILE_VALUES))

    def spread(value: int, *others: int) -> Values:
        tiles = tile(value)
        tiles[0, np.linspace(0, TILE_VALUES - 1, len(others), dtype=np.int64)] = others
        return tiles

    yield "all zero", tile(ZERO), True
    yield "zeros of both signs", tile(ZERO, 0x8000), True
    yield "all numbers next to zero", tile(*range(0x0080), *range(0x8000, 0x8080)), True
    yield "all NaN, with all payloads", tile(*range(0x7F80, 0x8000), *range(0xFF80, 0x10000)), True
    yield "infinities of both signs", tile(0x7F80, 0xFF80), True
    yield "all equal", tile(0xBF12), True
    yield "zeros and a huge value", spread(ZERO, HUGE), True
    yield "numbers next to zero and a NaN", spread(0x0001, NAN), True
    yield "a NaN among zeros and infinities", spread(ZERO, NAN, 0x7F80, 0xFF80), True
    yield "ones and a huge value", spread(ONE, HUGE), False
    yield "ones and a NaN", spread(ONE, NAN), False
    yield "ones and 12 tiny values", spread(ONE, *[0x0123] * 12), True
    yield "ones and 13 tiny values", spread(ONE, *[0x0123] * 13), False
    yield "huge, tiny and zero in turns", tile(HUGE, 0x0123, ZERO), False
    yield "exponents 13 below", tile(ONE, ONE - (13 << 7)), True
    yield "exponents 14 below", tile(ONE, ONE - (14 << 7)), False
    for largest in (13, 14, 15, 16):
        yield f"zeros and exponents of {largest}", tile(ZERO, largest << 7), True
    yield "random bits", rng.integers(0, 1 << 16, (1, TILE_VALUES), dtype=np.uint16), False
    yield "random numbers", ordinary(1), True


def _bits(exponents: npt.NDArray[np.int64], number: npt.NDArray[np.int64]) -> Values:
    """Return the values with these exponents, each with one of 256 combinations of sign and mantissa."""
    return ((number & 0x80) << 8 | exponents << 7 | number & 0x7F).astype(np.uint16)


SPECIAL = {name: (values, fits) for name, values, fits in _special()}
"""Single tiles, and whether they can be packed."""
