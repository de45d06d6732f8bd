"""Where the bytes of a block are in GPU memory, and how a kernel is told.

The same picture as `kvtide.copy.regions`, in addresses instead of buffers: a block is one fragment in each of many
regions, and on the host its fragments lie side by side in one slot, in region order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvtide.errors import ConfigError
from kvtide.options import parse_count

_WIDEST_BYTES = 16
_UNITS_MAX = 16
_STEP_ELEMENTS = 2048
"""Elements that one step of a program copies: 16 KiB of the widest ones."""


class Tensor(Protocol):
    """What is asked of a torch tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """Elements along each axis."""

    def stride(self) -> Sequence[int]:
        """Elements from one index of an axis to the next."""

    def element_size(self) -> int:
        """Bytes of an element."""

    def data_ptr(self) -> int:
        """Address of the first element."""

    def untyped_storage(self) -> Any:
        """Return the memory it is a view of."""


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """One fragment of every block: that of block `b` begins at address `address + b * block_stride`."""

    address: int
    block_stride: int
    fragment_bytes: int
    owner: object = field(default=None, compare=False, repr=False)
    """Keeps the memory alive: the tensor it belongs to."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        parse_count("address", self.address)
        parse_count("fragment_bytes", self.fragment_bytes)
        parse_count("block_stride", self.block_stride)
        if self.block_stride < self.fragment_bytes:
            raise ConfigError("block_stride", self.block_stride, f"at least the fragment, {self.fragment_bytes} bytes")


class CudaCache:
    """The GPU's blocks: `blocks` of them, each in as many fragments as there are regions.

    A region that is named twice counts once: layers of different attention groups share tensors. Regions that
    follow one another in every block become one, in the given order, which is also the order in a host slot.
    """

    def __init__(self, regions: Iterable[CudaRegion], *, blocks: int, device: int = 0) -> None:
        parse_count("blocks", blocks)
        parse_count("device", device, minimum=0)
        self.regions = tuple(_joined(dict.fromkeys(regions)))
        if not self.regions:
            raise ConfigError("regions", (), "at least one region")
        self.blocks = blocks
        self.device = device
        self.block_bytes = sum(region.fragment_bytes for region in self.regions)
        self.fragment_bytes_min = min(region.fragment_bytes for region in self.regions)
        self.fragment_bytes_max = max(region.fragment_bytes for region in self.regions)

    @property
    def slot_offsets(self) -> npt.NDArray[np.int64]:
        """Where each region's fragment begins in a host slot."""
        sizes = [region.fragment_bytes for region in self.regions]
        return np.cumsum([0, *sizes[:-1]], dtype=np.int64)


def tensor_regions(tensor: Tensor, block_axis: int) -> tuple[CudaRegion, ...]:
    """Return the regions of a tensor whose axis `block_axis` counts blocks; the tensor may be a permuted view.

    The axes that lie densely inside a block make up the fragment, whatever their order. Each index into the other
    ones is a region of its own: (2, blocks, tokens, heads, size) has two, (blocks, 2, tokens, heads, size) has one.
    """
    if not 0 <= block_axis < len(tensor.shape):
        raise ConfigError("block_axis", block_axis, f"an axis of the tensor, 0 to {len(tensor.shape) - 1}")
    width, strides = tensor.element_size(), tensor.stride()
    block_stride = strides[block_axis] * width
    inner = [axis for axis in range(len(tensor.shape)) if axis != block_axis and tensor.shape[axis] != 1]
    inner.sort(key=lambda axis: strides[axis])
    fragment_bytes = width
    while inner and strides[inner[0]] * width == fragment_bytes:
        fragment_bytes *= tensor.shape[inner.pop(0)]
    outer = [range(0, tensor.shape[axis] * strides[axis] * width, strides[axis] * width) for axis in reversed(inner)]
    begins = [tensor.data_ptr() + sum(steps) for steps in product(*outer)]
    regions = tuple(CudaRegion(begin, block_stride, fragment_bytes, tensor) for begin in begins)
    _check_inside(tensor, regions, tensor.shape[block_axis])
    return regions


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """Cuts every block into tiles that one step of the kernel copies. A tile lies in one fragment."""

    element_bytes: int
    """Size of the integers that are copied, a power of two up to 8."""
    align: int
    """Elements by which every address is divisible. 2 elements of 8 bytes make one access of 16."""
    lanes: int
    """Elements of the longest tile, rounded up to a power of two."""
    units: int
    """Tiles that are copied at a time."""
    table: npt.NDArray[np.int64]
    """A column per tile: address in block 0, block stride, offset in the slot, length; all in elements."""

    @property
    def tiles(self) -> int:
        """Tiles of one block."""
        return len(self.table[0])


def tiling(cache: CudaCache) -> Tiling:
    """Return how a kernel goes through the blocks of a cache: the widest accesses that all addresses allow."""
    numbers = [n for r in cache.regions for n in (r.address, r.block_stride, r.fragment_bytes)]
    divisor = math.gcd(_WIDEST_BYTES, *numbers)
    element_bytes = min(8, divisor)
    step_bytes = _STEP_ELEMENTS * element_bytes
    tile_bytes = min(step_bytes, 1 << (cache.fragment_bytes_max - 1).bit_length())
    columns: list[npt.NDArray[np.int64]] = []
    for region, slot_offset in zip(cache.regions, cache.slot_offsets, strict=True):
        begins = np.arange(0, region.fragment_bytes, tile_bytes, dtype=np.int64)
        lengths = np.minimum(region.fragment_bytes - begins, tile_bytes)
        strides = np.full_like(begins, region.block_stride)
        columns.append(np.stack([region.address + begins, strides, slot_offset + begins, lengths]))
    return Tiling(
        element_bytes=element_bytes,
        align=divisor // element_bytes,
        lanes=tile_bytes // element_bytes,
        units=min(_UNITS_MAX, step_bytes // tile_bytes),
        table=np.ascontiguousarray(np.concatenate(columns, axis=1)) // element_bytes,
    )


def _joined(regions: Iterable[CudaRegion]) -> Iterator[CudaRegion]:
    last: CudaRegion | None = None
    for region in regions:
        if last is None:
            last = region
        elif region.block_stride == last.block_stride and region.address == last.address + last.fragment_bytes:
            owner = (last.owner, region.owner)
            last = CudaRegion(last.address, last.block_stride, last.fragment_bytes + region.fragment_bytes, owner)
        else:
            yield last
            last = region
    if last is not None:
        yield last


def _check_inside(tensor: Tensor, regions: Sequence[CudaRegion], blocks: int) -> None:
    storage = tensor.untyped_storage()
    end = storage.data_ptr() + storage.nbytes()
    for region in regions:
        if region.address + (blocks - 1) * region.block_stride + region.fragment_bytes > end:
            raise ConfigError("tensor", tuple(tensor.shape), "a view that lies inside its storage")
