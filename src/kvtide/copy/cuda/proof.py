"""Whether a GPU copies as it should: a few blocks there and back, by every kernel, before others depend on it.

What is compared here rests on how Triton lays out a kernel's parameters, which is not documented.
"""

from __future__ import annotations

import numpy as np

from kvtide.copy.arena import HostArena
from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import CudaCache, CudaRegion
from kvtide.copy.cuda.gpu import Gpu
from kvtide.copy.cuda.lane import Lane
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
    gpu.enter(gpu.stream())
    region_bytes = _BLOCKS * _FRAGMENT_BYTES
    memory = gpu.allocate(_REGIONS * region_bytes)
    begins = range(memory.address, memory.address + _REGIONS * region_bytes, region_bytes)
    regions = [CudaRegion(begin, _FRAGMENT_BYTES, _FRAGMENT_BYTES, memory) for begin in begins]
    cache = CudaCache(regions, blocks=_BLOCKS)
    arena = HostArena(_SLOTS, cache.block_bytes)
    address = int(arena.memory.ctypes.data)
    gpu.pin(address, arena.memory.nbytes)
    try:
        # Each way of kernels beside one without: two that are wrong in the same way would agree.
        for load, store in ((Route.STAGED, Route.DIRECT), (Route.DIRECT, Route.STAGED)):
            _copy_there_and_back(
                arena, _lane(gpu, Direction.LOAD, cache, arena, load), _lane(gpu, Direction.STORE, cache, arena, store)
            )
    finally:
        gpu.unpin(address)
        arena.close()


def _copy_there_and_back(arena: HostArena, load: Lane, store: Lane) -> None:
    numbers = np.random.default_rng(0)
    for name, (blocks, slots) in _TRANSFERS.items():
        arena.memory[:] = numbers.integers(0, 256, arena.memory.shape, np.uint8)
        elsewhere = tuple(slot + _BLOCKS for slot in slots)
        for lane, there in ((load, slots), (store, elsewhere)):
            try:
                lane.enter()
                lane.gaps[0] = 1
                lane.issue(Copy(0, blocks, there), None, _SLOTS).end.synchronize()
            finally:
                lane.settle()  # before its memory goes
        if not np.array_equal(arena.memory[list(slots)], arena.memory[list(elsewhere)]):
            raise CopyError(f"other bytes came back than were sent, for {name}")


def _lane(gpu: Gpu, direction: Direction, cache: CudaCache, arena: HostArena, route: Route) -> Lane:
    return Lane(
        gpu,
        direction,
        cache,
        arena,
        route=route,
        staging_bytes=2 * cache.block_bytes,  # so there are more chunks than may be ahead
        staging_buffers=2,
        piece_bytes=_PIECE_BYTES,
    )
