"""Blocks of any fragments are packed to one size."""

from __future__ import annotations

import numpy as np
import pytest

from kvtide.copy.packing import TILE_BYTES, BlockPacking
from kvtide.errors import ConfigError
from tests.copy.packing.cases import ordinary


@pytest.mark.parametrize("fragments", [[2048], [6144, 6144], [2, 2048, 2050], [16, 30, 4096]])
def test_blocks_come_back_whatever_their_fragments(fragments: list[int]) -> None:
    packing = BlockPacking(fragments)
    rows = ordinary(40).view(np.uint8).reshape(-1)[: 5 * sum(fragments)].reshape(5, -1)
    packed = packing.pack(rows)
    assert packed.rows.shape == (5, packing.packed_bytes)
    assert packed.fits.all()
    assert np.array_equal(packing.unpack(packed.rows), rows)


def test_one_tile_that_does_not_fit_keeps_its_block_from_fitting_and_no_other() -> None:
    packing = BlockPacking([4096, 4096])
    values = ordinary(12).reshape(3, -1)
    values[1, 2100:2200] ^= 0x3000
    packed = packing.pack(values.view(np.uint8))
    assert packed.fits.tolist() == [True, False, True]
    assert np.array_equal(packing.unpack(packed.rows[[0, 2]]).view(np.uint16), values[[0, 2]])


def test_a_block_of_full_tiles_is_1_32_times_smaller() -> None:
    assert BlockPacking([6144] * 60).ratio == pytest.approx(2048 / 1552)
    assert BlockPacking([6144] * 60).packed_bytes == 180 * TILE_BYTES


def test_fragments_begin_tiles_of_their_own() -> None:
    assert BlockPacking([2050, 2048]).packed_bytes == 3 * TILE_BYTES


def test_no_blocks_at_all_are_packed_too() -> None:
    packing = BlockPacking([2048, 4096])
    packed = packing.pack(np.empty((0, 6144), dtype=np.uint8))
    assert packed.rows.shape == (0, packing.packed_bytes)
    assert packing.unpack(packed.rows).shape == (0, 6144)


def test_values_of_other_sizes_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="fragment_bytes"):
        BlockPacking([2048, 3])
