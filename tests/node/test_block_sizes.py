"""What blocks take of a node's memory."""

from __future__ import annotations

import pytest

from kvtide.copy.packing import whole_tiles_bytes
from kvtide.node.block_sizes import SLOTS_MAX, BlockSizes, sizes_of
from kvtide.node.errors import BadFrame

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize("sizes", [None, [], "1000", [0], [-1], [True], [1.5], [1 << 41], [1] * 1025])
def test_sizes_that_make_no_sense_are_no_namespace(sizes: object) -> None:
    with pytest.raises(BadFrame, match="a namespace with"):
        sizes_of({"parts": sizes})
    with pytest.raises(BadFrame, match="a namespace with"):
        sizes_of({"parts": [1000], "rows": sizes})


def test_there_are_rows_for_every_part_or_for_none() -> None:
    assert sizes_of({"parts": [1000, 500]}) == BlockSizes((1000, 500), (0, 0))
    assert sizes_of({"parts": [1000, 500], "rows": [2000, 600]}) == BlockSizes((1000, 500), (2000, 600))
    with pytest.raises(BadFrame, match="of 2 parts with rows of 1"):
        sizes_of({"parts": [1000, 500], "rows": [1000]})


def test_without_packing_a_block_takes_a_slot_in_every_part_and_nothing_else() -> None:
    sizes = BlockSizes((1000, 500), (0, 0))
    assert sizes.nbytes(7) == 7 * 1500
    assert (sizes.slots_in(1499), sizes.slots_in(1500), sizes.slots_in(15_000)) == (0, 1, 10)
    assert sizes.slots_in(1 << 60) == SLOTS_MAX


@pytest.mark.parametrize("block_bytes", [2048, 32 << 10, 2 * MIB])
@pytest.mark.parametrize("parts", [1, 8])
@pytest.mark.parametrize("nbytes", [1000, 3 * MIB, 16 * MIB, 100 * MIB + 1, GIB, 64 * GIB, 999 * GIB])
def test_slots_and_their_rows_take_all_there_is_and_no_more(nbytes: int, parts: int, block_bytes: int) -> None:
    sizes = BlockSizes((whole_tiles_bytes([block_bytes]),) * parts, (block_bytes,) * parts)
    slots = sizes.slots_in(nbytes)
    assert slots == 0 or sizes.nbytes(slots) <= nbytes
    assert slots == SLOTS_MAX or sizes.nbytes(slots + 1) > nbytes


def test_sizes_that_nobody_has_take_no_time() -> None:
    assert BlockSizes((1,), (1 << 40,)).slots_in(64 * GIB) == 0
    large = BlockSizes((1,) * 1024, ((2 << 20) - 8,) * 1024)
    assert large.slots_in(large.nbytes(1)) > 0
