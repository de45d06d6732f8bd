"""Runs the kernels in Triton's interpreter on random geometries and compares all memory with the twin's."""

from __future__ import annotations

import ctypes
import importlib
import random
from typing import Any

import numpy as np

from kvtide.copy.cuda.geometry import CudaCache, CudaRegion, tiling
from tests.copy.cuda.fake_gpu import Rows, twin


def compare(seed: int, *, to_rows: bool) -> None:
    torch: Any = importlib.import_module("torch")
    move_tiles: Any = importlib.import_module("kvtide.copy.cuda.kernels").move_tiles
    rng = random.Random(seed)
    unit, blocks, first, pairs = rng.choice([1, 2, 4, 8, 16, 16]), 8, rng.randint(0, 3), 4
    memory = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, 1 << 17, np.uint8))
    base = memory.data_ptr() + -memory.data_ptr() % 16
    regions, at = [], base
    for _ in range(rng.randint(1, 3)):
        fragment = unit * rng.randint(1, 150)
        stride = fragment + unit * rng.randint(0, 2)
        regions.append(CudaRegion(at, stride, fragment))
        at += blocks * stride + 16 - blocks * stride % 16
    cache = CudaCache(regions, blocks=blocks)
    rows_at = at
    tiles = tiling(cache)
    table = torch.from_numpy(tiles.table.copy())
    anchor = table.data_ptr() // tiles.element_bytes
    assert table.data_ptr() % 16 == 0
    table[0] -= anchor
    scattered = rng.random() < 0.5
    slots = rng.sample(range(pairs), pairs)
    pairs_of = list(zip(rng.sample(range(blocks), first + pairs), [99] * first + slots, strict=True))
    index = torch.tensor(pairs_of, dtype=torch.int64)
    dtype = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tiles.element_bytes]

    before = memory.clone()
    move_tiles[(2,)](
        table.view(dtype), table.view(-1), index.view(-1), first, pairs, tiles.tiles,
        rows_at // tiles.element_bytes - anchor, cache.block_bytes // tiles.element_bytes,
        TO_ROWS=to_rows, SCATTERED=scattered, UNITS=tiles.units, LANES=tiles.lanes, ALIGN=tiles.align,
    )  # fmt: skip
    after = memory.clone()
    memory.copy_(before)
    rows = Rows(index.data_ptr(), first, pairs, rows_at, cache.block_bytes, scattered)
    for row, region, nbytes in twin(tiles, table.data_ptr(), rows):
        to, source = (row, region) if to_rows else (region, row)
        ctypes.memmove(to, source, nbytes)
    assert torch.equal(after, memory), f"seed {seed}"
    assert not torch.equal(after, before)


def compare_fetch(count: int) -> None:
    torch: Any = importlib.import_module("torch")
    fetch_numbers: Any = importlib.import_module("kvtide.copy.cuda.kernels").fetch_numbers
    source = torch.arange(7, 7 + count, dtype=torch.int64)
    to = torch.full((count + 5,), -1, dtype=torch.int64)
    fetch_numbers[(-(-count // 16),)](to, (source.data_ptr() - to.data_ptr()) // 8, count, LANES=16)
    assert to.tolist() == [*source.tolist(), *[-1] * 5]


if __name__ == "__main__":
    for count in (1, 16, 37):
        compare_fetch(count)
    for seed in range(12):
        compare(seed, to_rows=True)
        compare(seed, to_rows=False)
