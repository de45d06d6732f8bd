from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtide.copy.cuda.geometry import CudaCache, CudaRegion, tensor_regions, tiling
from kvtide.errors import ConfigError


class FakeTensor:
    """Looks like a torch tensor; its memory is numpy's."""

    def __init__(self, array: npt.NDArray[Any], storage: npt.NDArray[Any] | None = None) -> None:
        self.array = array
        self.shape: Sequence[int] = array.shape
        self._storage = array if storage is None else storage

    def stride(self) -> Sequence[int]:
        return [stride // self.array.itemsize for stride in self.array.strides]

    def element_size(self) -> int:
        return self.array.itemsize

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> FakeTensor:
        return FakeTensor(self._storage)

    def nbytes(self) -> int:
        return self.array.nbytes


def _bytes_of(array: npt.NDArray[Any], block_axis: int, block: int) -> set[int]:
    """Addresses of all bytes of a block, by looking at every element."""
    one = np.take(np.arange(array.size).reshape(array.shape), [block], axis=block_axis)
    addresses: set[int] = set()
    for index in product(*(range(n) for n in array.shape)):
        if index[block_axis] == block:
            begin = array.ctypes.data + sum(i * s for i, s in zip(index, array.strides, strict=True))
            addresses.update(range(begin, begin + array.itemsize))
    assert len(addresses) == one.size * array.itemsize
    return addresses


LAYOUTS = {
    "flash (2, blocks, tokens, heads, size)": ((2, 6, 4, 2, 8), (0, 1, 2, 3, 4), 1, 2),
    "flashinfer (blocks, 2, tokens, heads, size)": ((6, 2, 4, 2, 8), (0, 1, 2, 3, 4), 0, 1),
    "heads before tokens, as a permuted view": ((6, 2, 2, 4, 8), (0, 1, 3, 2, 4), 0, 1),
    "MLA (blocks, tokens, latent)": ((6, 4, 24), (0, 1, 2), 0, 1),
    "K and V outside, permuted to look inside": ((2, 6, 4, 8), (1, 0, 2, 3), 0, 2),
    "one head": ((2, 6, 4, 1, 8), (0, 1, 2, 3, 4), 1, 2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_regions_of_a_tensor_cover_exactly_its_blocks(name: str) -> None:
    shape, order, block_axis, expected = LAYOUTS[name]
    array = np.zeros(shape, np.float16).transpose(order)
    regions = tensor_regions(FakeTensor(array, array.base), block_axis)
    assert len(regions) == expected
    for block in range(array.shape[block_axis]):
        begins = [(r.address + block * r.block_stride, r.fragment_bytes) for r in regions]
        covered = [byte for begin, size in begins for byte in range(begin, begin + size)]
        assert len(covered) == len(set(covered))
        assert set(covered) == _bytes_of(array, block_axis, block)


def test_layers_that_lie_side_by_side_in_every_block_become_one_fragment() -> None:
    backing = np.zeros((8, 3, 64), np.uint8)  # blocks, layers, bytes: vLLM 0.32's one allocation
    regions = [r for layer in range(3) for r in tensor_regions(FakeTensor(backing[:, layer], backing), 0)]
    cache = CudaCache(regions, blocks=8)
    assert cache.regions == (CudaRegion(int(backing.ctypes.data), 192, 192),)


def test_a_tensor_that_groups_share_counts_once() -> None:
    first, second = (FakeTensor(np.zeros((8, 64), np.uint8)) for _ in range(2))
    regions = [r for tensor in (first, second, first) for r in tensor_regions(tensor, 0)]
    assert CudaCache(regions, blocks=8).block_bytes == 128


def test_a_view_beyond_its_storage_is_refused() -> None:
    array = np.zeros((8, 64), np.uint8)
    with pytest.raises(ConfigError, match="inside its storage"):
        tensor_regions(FakeTensor(array, array[:4]), 0)


def test_an_axis_that_the_tensor_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="block_axis=2"):
        tensor_regions(FakeTensor(np.zeros((8, 64), np.uint8)), 2)


@pytest.mark.parametrize(
    ("option", "address", "stride", "fragment"),
    [("address", 0, 8, 8), ("fragment_bytes", 64, 8, 0), ("block_stride", 64, 7, 8)],
)
def test_numbers_that_make_no_sense_are_refused_by_name(option: str, address: int, stride: int, fragment: int) -> None:
    with pytest.raises(ConfigError, match=option):
        CudaRegion(address, stride, fragment)


def test_a_cache_without_regions_is_refused() -> None:
    with pytest.raises(ConfigError, match="regions"):
        CudaCache([], blocks=1)


@st.composite
def _caches(draw: st.DrawFn) -> CudaCache:
    unit = draw(st.sampled_from([1, 2, 4, 8, 16, 512]))
    regions = []
    address = 1 << 20
    for _ in range(draw(st.integers(1, 6))):
        fragment = unit * draw(st.integers(1, 90))
        regions.append(CudaRegion(address, fragment + unit * draw(st.integers(0, 3)), fragment))
        address += 1 << 20
    return CudaCache(regions, blocks=3)


@given(cache=_caches())
def test_tiles_cover_every_byte_of_a_block_once_and_in_slot_order(cache: CudaCache) -> None:
    tiles = tiling(cache)
    origin, stride, offset, length = tiles.table * tiles.element_bytes
    assert length.max() <= tiles.lanes * tiles.element_bytes
    assert length.min() > 0
    assert offset.tolist() == [0, *np.cumsum(length)[:-1].tolist()]
    assert length.sum() == cache.block_bytes
    begins = cache.slot_offsets.tolist()
    for at, o, s, n in zip(offset.tolist(), origin.tolist(), stride.tolist(), length.tolist(), strict=True):
        number = max(i for i, begin in enumerate(begins) if begin <= at)
        region = cache.regions[number]
        assert (o - region.address, s) == (at - begins[number], region.block_stride)
        assert at + n <= begins[number] + region.fragment_bytes, "a tile lies in one fragment"


@given(cache=_caches())
def test_accesses_are_as_wide_as_all_addresses_allow(cache: CudaCache) -> None:
    tiles = tiling(cache)
    width = tiles.element_bytes * tiles.align
    numbers = [n for r in cache.regions for n in (r.address, r.block_stride, r.fragment_bytes)]
    assert width == math.gcd(16, *numbers)
    assert tiles.lanes & (tiles.lanes - 1) == tiles.units & (tiles.units - 1) == 0
    assert tiles.lanes * tiles.units <= 2048
