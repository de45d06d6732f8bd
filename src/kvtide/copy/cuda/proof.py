"""Whether a GPU copies as it should: a few blocks there and back, by every kernel, before others depend on it.

What is compared here rests on how Triton lays out a kernel's parameters, which is not documented.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvtide.copy.arena import HostArena
from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import CudaCache, CudaRegion
from kvtide.copy.cuda.gpu import Gpu, Stream
from kvtide.copy.cuda.issuing import NO_GAPS
from kvtide.copy.cuda.lane import Lane
from kvtide.copy.cuda.lane_kit import LaneKit
from kvtide.copy.cuda.measure import Route
from kvtide.core.messages import Copy
from kvtide.errors import CopyError

_FRAGMENT_BYTES = 16 << 10
"""So the kernels are those of most models, and are compiled only once."""
_REGIONS, _BLOCKS = 2, 20
_SLOTS = 2 * _BLOCKS
_PIECE_BYTES = 2 << 20
_TRANSFERS = {
    "a run of slots": (tuple(range(_BLOCKS)), tuple(range(_BLOCKS))),
    "scattered slots": ((5, 0, 7, 2), (1, 3, 5, 7)),
}


def prove(gpu: Gpu) -> None:
    """Load blocks, store them elsewhere, and compare. Raises if that does not work. Enters the GPU."""
    gpu.enter()  # from here on nothing disturbs somebody else's capture of a graph
    stream = gpu.stream()
    gpu.enter(stream)
    memory = gpu.allocate(_REGIONS * _BLOCKS * _FRAGMENT_BYTES)
    begins = [memory.address + region * _BLOCKS * _FRAGMENT_BYTES for region in range(_REGIONS)]
    cache = CudaCache([CudaRegion(at, _FRAGMENT_BYTES, _FRAGMENT_BYTES) for at in begins], blocks=_BLOCKS)
    arena = HostArena(_SLOTS, cache.block_bytes)
    address = int(arena.memory.ctypes.data)
    gpu.pin(address, arena.memory.nbytes)
    try:
        load, store = (_lane(gpu, direction, cache, arena) for direction in (Direction.LOAD, Direction.STORE))
        for name, (blocks, slots) in _TRANSFERS.items():
            arena.memory[:] = np.random.default_rng(0).integers(0, 256, arena.memory.shape, np.uint8)
            expected = arena.memory[list(slots)]
            _run(load, Copy(0, blocks, slots))
            if not np.array_equal(_device_blocks(gpu, stream, memory.address)[list(blocks)], expected):
                raise CopyError(f"wrong bytes were loaded, of {name}")
            elsewhere = tuple(slot + _BLOCKS for slot in slots)
            _run(store, Copy(0, blocks, elsewhere))
            if not np.array_equal(arena.memory[list(elsewhere)], expected):
                raise CopyError(f"wrong bytes were stored, to {name}")
    finally:
        gpu.unpin(address)
        arena.close()


def _lane(gpu: Gpu, direction: Direction, cache: CudaCache, arena: HostArena) -> Lane:
    staging_bytes = 2 * cache.block_bytes  # so there are more chunks than may be ahead
    kit = LaneKit(
        gpu,
        direction,
        cache,
        route=Route.STAGED,
        staging_bytes=staging_bytes,
        staging_buffers=2,
        pairs_max=_SLOTS,
    )
    return Lane(gpu, direction, cache, arena, kit, piece_bytes=_PIECE_BYTES)


def _run(lane: Lane, copy: Copy) -> None:
    try:
        lane.enter()
        lane.gaps[0] = 1
        lane.issue(copy, None, _SLOTS)
    finally:
        lane.settle()  # memory may go when this has returned


def _device_blocks(gpu: Gpu, stream: Stream, address: int) -> npt.NDArray[np.uint8]:
    """Return the blocks as slots have them, by copies in which no kernel has a part."""
    host = gpu.allocate_pinned(_REGIONS * _BLOCKS * _FRAGMENT_BYTES)
    offsets = np.arange(0, host.nbytes, _FRAGMENT_BYTES, dtype=np.int64)
    commands = gpu.commands()
    commands.copy(stream, host.ctypes.data + offsets, address + offsets, np.full_like(offsets, _FRAGMENT_BYTES))
    commands.run(NO_GAPS)
    stream.synchronize()
    return host.reshape(_REGIONS, _BLOCKS, _FRAGMENT_BYTES).swapaxes(0, 1).reshape(_BLOCKS, -1)
