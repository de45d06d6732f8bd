"""Where the bytes of a device block are.

A serving engine keeps K and V of each layer in arrays of its own, so a block is not one piece of memory but
one fragment in each of many regions. On the host the fragments of a block lie side by side in one slot, in
region order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvtide.errors import ConfigError
from kvtide.options import parse_count

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    Buffer = WriteableBuffer | npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """One fragment of every block: that of block `b` is at byte `offset + b * block_stride` of `buffer`."""

    buffer: Buffer
    """Any writable, C-contiguous object with the buffer protocol, such as a numpy array."""
    block_stride: int
    fragment_bytes: int
    offset: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        parse_count("fragment_bytes", self.fragment_bytes)
        parse_count("offset", self.offset, minimum=0)
        parse_count("block_stride", self.block_stride)
        if self.block_stride < self.fragment_bytes:
            raise ConfigError("block_stride", self.block_stride, f"at least the fragment, {self.fragment_bytes} bytes")
        as_bytes(self.buffer)

    def bytes_needed(self, blocks: int) -> int:
        """Return how long the buffer has to be to hold `blocks` blocks."""
        return self.offset + (blocks - 1) * self.block_stride + self.fragment_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Neighbouring regions of one buffer, evenly spaced, so that one numpy call copies all of them."""

    memory: npt.NDArray[np.uint8]
    first: Region
    spacing: int
    """Bytes from one region's fragment to the next one's, within a block."""
    count: int
    slot_offset: int
    """Where the first fragment begins in a host slot; the others follow without a gap."""

    @property
    def row_bytes(self) -> int:
        """Bytes that one block has in this span."""
        return self.count * self.first.fragment_bytes

    def follows(self, region: Region, memory: npt.NDArray[np.uint8]) -> bool:
        """Return whether `region` continues the row of this span's regions."""
        first = self.first
        return (
            memory.__array_interface__["data"] == self.memory.__array_interface__["data"]
            and memory.nbytes == self.memory.nbytes
            and (region.block_stride, region.fragment_bytes) == (first.block_stride, first.fragment_bytes)
            and region.offset > first.offset
            and (self.count == 1 or region.offset == first.offset + self.count * self.spacing)
        )


class DeviceCache:
    """The device's blocks: `blocks` of them, each in as many fragments as there are regions.

    `blocks` counts every block id that a transfer may name, so a null block at id 0 is included.
    """

    def __init__(self, regions: Sequence[Region], *, blocks: int) -> None:
        parse_count("blocks", blocks)
        if not regions:
            raise ConfigError("regions", regions, "at least one region")
        self.regions = tuple(regions)
        self.blocks = blocks
        self.block_bytes = sum(region.fragment_bytes for region in regions)
        self.spans = tuple(_spans(self.regions, blocks))


def regions_of(array: npt.NDArray[Any], block_axis: int) -> tuple[Region, ...]:
    """Return the regions of a C-contiguous array whose axis `block_axis` counts blocks.

    Each index into the axes before it is a region of its own; the axes after it make up the fragment. An
    array of shape (layers, 2, blocks, block_tokens, heads, head_size) with `block_axis=2` has 2 * layers
    regions.
    """
    if not 0 <= block_axis < array.ndim:
        raise ConfigError("block_axis", block_axis, f"an axis of the array, 0 to {array.ndim - 1}")
    fragment_bytes = array.itemsize * int(np.prod(array.shape[block_axis + 1 :], dtype=np.int64))
    region_bytes = fragment_bytes * array.shape[block_axis]
    count = int(np.prod(array.shape[:block_axis], dtype=np.int64))
    return tuple(Region(array, fragment_bytes, fragment_bytes, i * region_bytes) for i in range(count))


def as_bytes(buffer: Buffer) -> npt.NDArray[np.uint8]:
    """Return the memory of `buffer` as a flat array of bytes that shares it."""
    try:
        if isinstance(buffer, np.ndarray):
            if not buffer.flags.c_contiguous:
                raise ConfigError("buffer", type(buffer), "C-contiguous memory")
            # Not by the buffer protocol, which has no name for some element types (bfloat16).
            flat: npt.NDArray[np.uint8] = buffer.reshape(-1).view(np.uint8)
        else:
            flat = np.frombuffer(memoryview(buffer), dtype=np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("buffer", type(buffer), f"C-contiguous memory with the buffer protocol ({error})") from error
    if not flat.flags.writeable:
        raise ConfigError("buffer", type(buffer), "writable memory: loads write to it")
    return flat


def _spans(regions: Sequence[Region], blocks: int) -> Iterator[Span]:
    """Check that every fragment lies inside its buffer, and join regions that one copy can serve."""
    span: Span | None = None
    slot_offset = 0
    for index, region in enumerate(regions):
        memory = as_bytes(region.buffer)
        if region.bytes_needed(blocks) > memory.nbytes:
            expected = f"a buffer of at least {region.bytes_needed(blocks)} bytes for {blocks} blocks"
            raise ConfigError(f"regions[{index}].buffer", f"{memory.nbytes} bytes", expected)
        if span is not None and span.follows(region, memory):
            spacing = region.offset - span.first.offset if span.count == 1 else span.spacing
            span = Span(memory, span.first, spacing, span.count + 1, span.slot_offset)
        else:
            if span is not None:
                yield span
            span = Span(memory, region, region.fragment_bytes, 1, slot_offset)
        slot_offset += region.fragment_bytes
    if span is not None:
        yield span
