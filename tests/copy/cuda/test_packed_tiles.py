from __future__ import annotations

import pytest

from kvtide.copy.cuda.geometry import CudaCache, CudaRegion
from kvtide.copy.cuda.packed_tiles import packable, packed_tiles
from kvtide.copy.packing import BlockPacking


def cache_of(*regions: tuple[int, int, int]) -> CudaCache:
    return CudaCache([CudaRegion(*region) for region in regions], blocks=4)


def test_a_column_says_where_a_tile_is_and_how_long_in_words() -> None:
    table = packed_tiles(cache_of((4096, 8192, 4096), (65536, 2064, 2064)))
    assert table.T.tolist() == [[1024, 2048, 512], [1536, 2048, 512], [16384, 516, 512], [16896, 516, 4]]


def test_there_are_as_many_columns_as_tiles_in_a_packed_block() -> None:
    cache = cache_of((4096, 8192, 4096), (65536, 2064, 2064))
    packing = BlockPacking([region.fragment_bytes for region in cache.regions])
    assert packed_tiles(cache).shape[1] == sum(packing.tiles)


def test_what_lies_at_multiples_of_16_bytes_can_be_packed() -> None:
    assert packable(cache_of((4096, 8192, 4096), (65536, 2064, 2064)))


@pytest.mark.parametrize("region", [(4104, 8192, 4096), (4096, 8200, 4096), (4096, 8192, 4088)])
def test_what_does_not_cannot(region: tuple[int, int, int]) -> None:
    assert not packable(cache_of((65536, 2048, 2048), region))
