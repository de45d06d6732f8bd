"""Where the tiles of the packed format are in GPU memory, as the kernels are told."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvtide.copy.cuda.geometry import CudaCache
from kvtide.copy.packing.format import TILE_VALUES

_TILE_BYTES = 2 * TILE_VALUES
WORD_BYTES = 4
_ALIGN_BYTES = 16


def packable(cache: CudaCache) -> bool:
    """Return whether the kernels can go through a cache: 16 bytes at a time."""
    return not any(
        number % _ALIGN_BYTES
        for region in cache.regions
        for number in (region.address, region.block_stride, region.fragment_bytes)
    )


def packed_tiles(cache: CudaCache) -> npt.NDArray[np.int64]:
    """Return a column per tile of a block: address in block 0, block stride, length; all in 32-bit words."""
    columns: list[npt.NDArray[np.int64]] = []
    for region in cache.regions:
        begins = np.arange(0, region.fragment_bytes, _TILE_BYTES, dtype=np.int64)
        lengths = np.minimum(region.fragment_bytes - begins, _TILE_BYTES)
        columns.append(np.stack([region.address + begins, np.full_like(begins, region.block_stride), lengths]))
    return np.ascontiguousarray(np.concatenate(columns, axis=1)) // WORD_BYTES
