"""Packing on a CPU does what the reference does. Run by `tests/vllm/test_packing_compiled.py`, where numba is."""

from __future__ import annotations

import numpy as np
import pytest

from kvtide.copy.packing import compiled
from kvtide.copy.packing import format as reference
from kvtide.copy.packing.format import TILE_BYTES, TILE_VALUES, Bytes, Values
from tests.copy.packing.cases import (
    SPECIAL,
    all_patterns,
    each_among_others,
    each_code_everywhere,
    ordinary,
    with_escapes,
)


def is_same(values: Values) -> bool:
    tiles, fits = reference.pack_tiles(values)
    packed = np.full_like(tiles, 0xA5)
    assert np.array_equal(compiled.pack_into(values, packed), fits)
    assert np.array_equal(packed, tiles)
    return np.array_equal(unpacked(tiles), reference.unpack_tiles(tiles))


def unpacked(tiles: Bytes) -> Values:
    values = np.full((len(tiles), TILE_VALUES), 0xA5A5, dtype=np.uint16)
    compiled.unpack_into(tiles, values)
    return values


@pytest.mark.parametrize("name", SPECIAL)
def test_special_tiles_are_packed_as_the_reference_packs_them(name: str) -> None:
    assert is_same(SPECIAL[name][0])


def test_every_pattern_at_every_place_of_a_group_is_packed_as_the_reference_packs_it() -> None:
    for exponent in range(256):
        assert is_same(all_patterns(exponent))


def test_every_pattern_among_others_is_packed_as_the_reference_packs_it() -> None:
    assert is_same(each_among_others())


def test_every_code_and_an_escape_at_every_place_are_packed_as_the_reference_packs_them() -> None:
    assert is_same(each_code_everywhere())


@pytest.mark.parametrize("count", [1, 11, 12, 13, 200])
def test_escapes_are_packed_as_the_reference_packs_them(count: int) -> None:
    assert is_same(with_escapes(count, tiles=50))


def test_no_tiles_at_all_are_packed_too() -> None:
    assert is_same(ordinary(0))


def test_any_bytes_are_unpacked_as_the_reference_unpacks_them() -> None:
    tiles = np.random.default_rng(0).integers(0, 256, (200, TILE_BYTES), dtype=np.uint8)
    assert np.array_equal(unpacked(tiles), reference.unpack_tiles(tiles))
