"""One direction of traffic: streams, staging buffers, and the order in which the GPU goes through them.

A transfer is cut into chunks of one staging buffer. For each of them, on three streams:

    uploads  which blocks go to which slots ┐
    kernels                                 └► gather into buffer ─┐    or, for a load,         ┌─► scatter from buffer
    copies                                                         └─► DMA       DMA to buffer ─┘

Events keep a kernel from running before its index is there, a DMA from reading a buffer that is not full, and both
from filling one that is not empty. The host never waits for any of that.

It waits only in order not to run further ahead than `_STEPS` chunks, in the lane's own thread. That keeps the lane
from taking the GIL for milliseconds on end, and is still more than the interpreter's switch interval ahead, so that
a thread that keeps the GIL does not stop the copies. For the same reason, what is done for a chunk is kept short.

The streams that touch device blocks are `kernels`, and `copies` where there is no kernel. Fences are called with
`kernels` current, and `copies` is made to wait for it where it matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvtide.copy.arena import HostArena
from kvtide.copy.base import Direction, Fence
from kvtide.copy.cuda.geometry import CudaCache, Tiling, tiling
from kvtide.copy.cuda.gpu import DeviceMemory, Event, Gpu, Stream
from kvtide.copy.cuda.measure import Route
from kvtide.copy.cuda.plan import Ids, Ranges, checked_pairs, chunks, fragment_ranges, slot_ranges
from kvtide.core.wire import Copy

_STEPS = 4
_PAIRS_MAX = 16 << 10
_PAIR_BYTES = 16
_DMA_BYTES_MIN = 128 << 10
"""Where slots are scattered and runs are shorter than this, a kernel on pinned memory is faster than many copies."""


class Issued(NamedTuple):
    """The events around a transfer's copies."""

    begin: Event
    end: Event


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What a chunk needs until it is done."""

    host_index: npt.NDArray[np.int64]
    index: DeviceMemory
    uploaded: Event
    between: Event
    done: Event


@dataclass(slots=True, eq=False)
class _Buffer:
    memory: DeviceMemory
    empty: Event
    """Reached when what was last put in has been taken out: `done` of the step that did, or of a later one."""


class Lane:
    """Issues the transfers of one direction. One thread calls `enter` and then `issue` and `settle`."""

    def __init__(
        self,
        gpu: Gpu,
        direction: Direction,
        cache: CudaCache,
        arena: HostArena,
        *,
        route: Route,
        staging_bytes: int,
        staging_buffers: int,
        piece_bytes: int,
    ) -> None:
        self._gpu, self._direction, self._cache, self._arena = gpu, direction, cache, arena
        self._host_address = int(arena.memory.ctypes.data)
        self._piece_bytes = piece_bytes
        self._staged = route is Route.STAGED
        self._rows_max = max(1, min(_PAIRS_MAX, staging_bytes // cache.block_bytes))
        self._kernels, self._copies, self._uploads = gpu.stream(), gpu.stream(), gpu.stream()
        self._last = self._kernels if self._staged and direction is Direction.LOAD else self._copies
        """Where every chunk ends, so that transfers end in the order in which they were issued."""
        self._chunks = 0
        """Issued so far."""
        self._begin: Event | None = None
        """To be recorded before the next copy."""
        self.device_bytes = 0
        """GPU memory taken."""
        self._steps = [self._make_step() for _ in range(_STEPS)]
        self._buffers = [self._make_buffer() for _ in range(staging_buffers if self._staged else 0)]
        tiles = tiling(cache)
        self._move = gpu.mover(direction, tiles, self._upload_table(tiles))

    def enter(self) -> None:
        """Get the calling thread ready, and the kernels compiled."""
        self._gpu.enter(self._kernels)
        for scattered in (False, True):
            self._move_rows(self._steps[0], 0, self._host_address, scattered=scattered)

    def issue(self, copy: Copy, after: Fence | None, usable_slots: int, spare: Issued | None = None) -> Issued:
        """Issue a transfer and return; the bytes have moved when `end` is reached. Uses `spare` events, if given.

        Raises what goes wrong; a part of it may be under way then, until `settle`.
        """
        slots = self._arena.slots
        block_ids, slot_ids = checked_pairs(copy, blocks=self._cache.blocks, slots=slots, usable_slots=usable_slots)
        if after is not None:
            after()
        # Making an event takes 25 microseconds.
        issued = spare or Issued(self._gpu.event(timing=True), self._gpu.event(timing=True))
        self._begin = issued.begin
        for part in chunks(len(block_ids), self._rows_max):
            self._issue_chunk(block_ids[part], slot_ids[part])
        self._mark_begin(self._last)
        issued.end.record(self._last)
        return issued

    def settle(self) -> None:
        """Block until nothing of this lane runs any more. Raises if the device is lost."""
        for stream in (self._uploads, self._kernels, self._copies):
            stream.synchronize()

    def _issue_chunk(self, block_ids: Ids, slot_ids: Ids) -> None:
        step = self._steps[self._chunks % _STEPS]
        step.done.synchronize()
        if not self._staged:
            self._order(step.between, self._kernels, self._copies)  # after what the fence made the kernels wait for
            self._copy(fragment_ranges(self._cache, block_ids, slot_ids, self._piece_bytes), device=0)
        else:
            ranges = slot_ranges(slot_ids, self._arena.slot_bytes, self._piece_bytes)
            if len(ranges.size) > 1 and len(slot_ids) * self._arena.slot_bytes < _DMA_BYTES_MIN * len(ranges.size):
                self._move_mapped(step, block_ids, slot_ids)
            elif self._direction is Direction.STORE:
                self._store_staged(step, block_ids, slot_ids, ranges)
            else:
                self._load_staged(step, block_ids, slot_ids, ranges)
        step.done.record(self._last)
        self._chunks += 1

    def _move_mapped(self, step: _Step, block_ids: Ids, slot_ids: Ids) -> None:
        self._upload(step, block_ids, slot_ids)
        self._mark_begin(self._kernels)
        self._move_rows(step, len(block_ids), self._host_address, scattered=True)
        self._order(step.between, self._kernels, self._last)

    def _store_staged(self, step: _Step, block_ids: Ids, slot_ids: Ids, ranges: Ranges) -> None:
        buffer = self._buffers[self._chunks % len(self._buffers)]
        self._upload(step, block_ids, slot_ids)
        self._kernels.wait_event(buffer.empty)
        self._move_rows(step, len(block_ids), buffer.memory.address, scattered=False)
        self._order(step.between, self._kernels, self._copies)
        self._copy(ranges, device=buffer.memory.address)
        buffer.empty = step.done

    def _load_staged(self, step: _Step, block_ids: Ids, slot_ids: Ids, ranges: Ranges) -> None:
        buffer = self._buffers[self._chunks % len(self._buffers)]
        self._copies.wait_event(buffer.empty)
        self._copy(ranges, device=buffer.memory.address)
        self._upload(step, block_ids, slot_ids)
        self._order(step.between, self._copies, self._kernels)
        self._move_rows(step, len(block_ids), buffer.memory.address, scattered=False)
        buffer.empty = step.done

    def _order(self, event: Event, first: Stream, second: Stream) -> None:
        """Let what comes next on the second stream begin after what was issued on the first."""
        if first is not second:
            event.record(first)
            second.wait_event(event)

    def _move_rows(self, step: _Step, pairs: int, rows_at: int, *, scattered: bool) -> None:
        row_bytes = self._cache.block_bytes
        self._move(step.index, pairs=pairs, rows_at=rows_at, row_bytes=row_bytes, scattered=scattered)

    def _copy(self, ranges: Ranges, *, device: int) -> None:
        self._mark_begin(self._copies)
        device_end, host_end = device + ranges.device, self._host_address + ranges.host
        to, source = (host_end, device_end) if self._direction is Direction.STORE else (device_end, host_end)
        self._gpu.copy(self._copies, to, source, ranges.size)

    def _upload(self, step: _Step, block_ids: Ids, slot_ids: Ids) -> None:
        """Send the index by a stream of its own: behind large copies it would keep the kernel waiting."""
        index = step.host_index[: len(block_ids)]
        index[:, 0] = block_ids
        index[:, 1] = slot_ids
        self._send(step.index, index)
        self._order(step.uploaded, self._uploads, self._kernels)

    def _send(self, to: DeviceMemory, pinned: npt.NDArray[np.int64]) -> None:
        numbers = np.array([[to.address], [pinned.ctypes.data], [pinned.nbytes]], dtype=np.int64)
        self._gpu.copy(self._uploads, *numbers)

    def _mark_begin(self, stream: Stream) -> None:
        if self._begin is not None:
            self._begin.record(stream)
            self._begin = None

    def _allocate(self, nbytes: int) -> DeviceMemory:
        memory = self._gpu.allocate(nbytes)
        self.device_bytes += nbytes
        return memory

    def _make_step(self) -> _Step:
        nbytes = _PAIR_BYTES * self._rows_max
        host_index = self._gpu.allocate_pinned(nbytes).view(np.int64).reshape(-1, 2)
        return _Step(host_index, self._allocate(nbytes), *(self._gpu.event() for _ in range(3)))

    def _make_buffer(self) -> _Buffer:
        memory = self._allocate(self._rows_max * self._cache.block_bytes)
        return _Buffer(memory, self._gpu.event())

    def _upload_table(self, tiles: Tiling) -> DeviceMemory:
        """Return the table in GPU memory, its addresses counted from there."""
        memory = self._allocate(tiles.table.nbytes)
        table = self._gpu.allocate_pinned(tiles.table.nbytes).view(np.int64).reshape(tiles.table.shape)
        table[:] = tiles.table
        table[0] -= memory.address // tiles.element_bytes
        self._send(memory, table)
        self._uploads.synchronize()
        return memory
