"""The packed format gives back every bit, or says that it cannot."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide.copy.packing.format import (
    ESCAPES_MAX,
    GROUP_VALUES,
    NAMESPACE_PART,
    TILE_BYTES,
    TILE_VALUES,
    VERSION,
    Values,
    pack_tiles,
    unpack_tiles,
)
from tests.copy.packing.cases import (
    SPECIAL,
    all_patterns,
    each_among_others,
    each_code_everywhere,
    ordinary,
    with_escapes,
)


def comes_back(values: Values) -> bool:
    """Pack and unpack; all that fits must be the same bits again. Returns whether all of it fits."""
    tiles, fits = pack_tiles(values)
    assert tiles.shape == (len(values), TILE_BYTES)
    assert np.array_equal(unpack_tiles(tiles[fits]), values[fits])
    return bool(fits.all())


def test_every_pattern_comes_back_from_every_place_of_a_group() -> None:
    for exponent in range(256):
        assert comes_back(all_patterns(exponent))


def test_every_pattern_is_at_every_place_of_a_group_in_that_test() -> None:
    patterns = np.stack([all_patterns(exponent).reshape(-1, GROUP_VALUES) for exponent in range(256)])
    at = [0, 1, 100, GROUP_VALUES - 1]
    assert all(len(np.unique(patterns[:, :, place])) == 1 << 16 for place in at)


def test_every_pattern_comes_back_from_among_others_or_is_said_not_to_fit() -> None:
    values = each_among_others()
    comes_back(values)
    small = values[: 0x3F80 // 4]  # below 1: none of them is so large that the others are escapes
    assert comes_back(small)


@pytest.mark.parametrize("name", SPECIAL)
def test_special_tiles_come_back_or_are_said_not_to_fit(name: str) -> None:
    values, fits = SPECIAL[name]
    assert comes_back(values) is fits


@pytest.mark.parametrize("count", range(ESCAPES_MAX + 4))
def test_so_many_escapes_as_there_is_room_for_fit_and_not_one_more(count: int) -> None:
    assert set(pack_tiles(with_escapes(count, tiles=50)).fits.tolist()) == {count <= ESCAPES_MAX}
    comes_back(with_escapes(count, tiles=50))


def test_every_code_and_an_escape_come_back_from_every_place() -> None:
    assert comes_back(each_code_everywhere())


def test_random_bits_are_said_not_to_fit() -> None:
    values = np.random.default_rng(0).integers(0, 1 << 16, (200, TILE_VALUES), dtype=np.uint16)
    assert not pack_tiles(values).fits.any()


def test_values_as_kv_has_them_fit() -> None:
    assert comes_back(ordinary(500))


def test_any_bytes_can_be_unpacked_though_not_to_anything_of_use() -> None:
    tiles = np.random.default_rng(0).integers(0, 256, (50, TILE_BYTES), dtype=np.uint8)
    assert unpack_tiles(tiles).shape == (50, TILE_VALUES)


@given(st.integers(0, 255), st.integers(0, 40), st.integers(0, 30), st.integers(0, 1 << 32))
def test_tiles_of_any_spread_come_back_or_are_said_not_to_fit(largest: int, spread: int, odd: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    exponents = np.maximum(0, largest - rng.integers(0, spread + 1, TILE_VALUES))
    values = (rng.integers(0, 1 << 16, TILE_VALUES) & 0x807F | exponents << 7).astype(np.uint16)
    values[rng.integers(0, TILE_VALUES, odd)] = rng.integers(0, 1 << 16, odd)
    comes_back(values[None])


def test_the_bytes_of_this_version_stay_as_they_are() -> None:
    # Other bytes for the same values would be another format: VERSION has to count up, or stores hold both.
    of_all = [all_patterns(exponent)[:2] for exponent in range(256)]
    known = np.concatenate([*of_all, *(values for name, (values, _) in SPECIAL.items() if "random" not in name)])
    digest = hashlib.sha256(pack_tiles(known).tiles.tobytes()).hexdigest()
    assert (VERSION, NAMESPACE_PART, digest[:16]) == (1, ("kvtide.packing", "bf16/1"), "c8e42de017877931")


def test_a_small_example_can_be_followed_by_hand() -> None:
    values = np.full((1, TILE_VALUES), 0x3F80, dtype=np.uint16)  # 1.0, exponent 127
    values[0, 0] = 0xBF00  # -0.5, one below
    values[0, 256] = 0x0080  # exponent 1: an escape
    values[0, 513] = 0x0005  # exponent 0
    values[0, 770] = 0x4040  # 3.0: the largest of its group, all others are one below
    (tile,) = pack_tiles(values).tiles
    assert tile[:16].tolist() == [127, 127, 127, 128, 1, *[0] * 11]
    assert tile[16:20].tolist() == [0x80, 0, 0, 0]
    assert tile[528:534].tolist() == [0, 0, 5, 0, 0, 0x40]
    assert tile[1040:1048].tolist() == [0xF1, 0x10, 0x00, 0x1E, 0x00, 0x00, 0x00, 0x10]
