"""One direction of traffic: streams, staging buffers, and the order in which the GPU goes through them.

A transfer is cut into chunks of one staging buffer. On two streams:

    kernels  fetch the index, gather into buffer ─┐    or, for a load,         ┌─► scatter from buffer
    copies                                        └─► DMA       DMA to buffer ─┘

Events keep a DMA from reading a buffer that is not full, and both from filling one that is not empty. What a stream
waits for is fixed when the wait is issued, so an event can be recorded anew at once, and the host never waits for any
of that.

It waits only in order not to run further ahead than `_AHEAD` chunks, in the lane's own thread, and then issues half as
many in one go.

Whenever the thread runs Python it takes the GIL away from somebody: an engine that launches its kernels from Python was
slowed down by a third while blocks were copied. So a transfer is written down first, waits included, and then issued
in one call without the GIL (see `issuing`).

The streams that touch device blocks are `kernels`, and `copies` where there is no kernel. Fences are called with
`kernels` current, and `copies` is made to wait for it where it matters.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvtide.copy.arena import HostArena
from kvtide.copy.base import Direction, Fence
from kvtide.copy.cuda.geometry import CudaCache, tiling
from kvtide.copy.cuda.gpu import Event, Gap, Gpu, Stream
from kvtide.copy.cuda.issuing import NO_GAPS, Gaps
from kvtide.copy.cuda.lane_memory import PAIRS_MAX, Buffer, Index, LaneMemory
from kvtide.copy.cuda.measure import Route
from kvtide.copy.cuda.ranges import Ranges, checked_pairs, chunked, chunks, fragment_ranges, slot_ranges
from kvtide.copy.ids import Ids
from kvtide.core.messages import Copy

_AHEAD = 8
"""Chunks that the GPU may be behind. So much is left at most of an issued transfer: 10 ms, with the usual buffers."""
_TURN_BYTES = 16 << 20
"""After so many bytes others get their turn."""
_DMA_BYTES_MIN = 128 << 10
"""Where slots are scattered and runs are shorter than this, a kernel on pinned memory is faster than many copies."""


class Issued(NamedTuple):
    """The events around a transfer's copies."""

    begin: Event
    end: Event


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
        self._piece_bytes = math.gcd(piece_bytes, _TURN_BYTES)
        """Copies are cut at multiples of this, so that each is in one registration, and no longer than a turn."""
        self._staged = route is Route.STAGED
        self._rows_max = max(1, min(PAIRS_MAX, staging_bytes // cache.block_bytes))
        self._kernels, self._copies = gpu.stream(), gpu.stream()
        self._gap = Gap(_TURN_BYTES, gpu.stream(), gpu.event(), gpu.event())
        """Lets copies of other streams in.

        A copy engine stays with a stream as long as that has copies to do, and the few bytes that a serving engine
        sends with each step (token ids, block tables, and back what was sampled) waited until all of ours were over:
        20 small copies took 460 ms instead of 0.4. So our stream waits for another one, for microseconds. Then they
        take 5 ms, and ours 3 to 6% longer.
        """
        self.gaps: Gaps = np.zeros(1, dtype=np.int64)
        """Others have small copies to do, and are let in. Looked at while a transfer is issued."""
        self._commands = gpu.commands()
        """Of the transfer that is being written down."""
        self._last = self._kernels if self._staged and direction is Direction.LOAD else self._copies
        """Where every chunk ends, so that transfers end in the order in which they were issued."""
        self._chunks = 0
        """Issued so far."""
        self._done = [gpu.event() for _ in range(_AHEAD)]
        """Reached when a chunk is done; each is used for every eighth."""
        self._between = gpu.event()
        self._begin: Event | None = None
        """To be recorded before the next copy."""
        tiles = tiling(cache)
        self.memory = LaneMemory(
            gpu,
            tiles,
            self._copies,
            buffers=staging_buffers if self._staged else 0,
            buffer_bytes=self._rows_max * cache.block_bytes,
            pairs_max=max(cache.blocks, arena.slots),
        )
        self._move = gpu.mover(direction, tiles, self.memory.table)

    def enter(self) -> None:
        """Get the calling thread ready, and the kernels compiled."""
        self._gpu.enter(self._kernels)
        for index in self.memory.indexes[:1]:
            self._commands.fetch(self._kernels, index.device, index.host[:0])
            for scattered in (False, True):
                self._move_rows(index, 0, 0, self._host_address, scattered=scattered)
        self._commands.run(NO_GAPS)

    def issue(self, copy: Copy, after: Fence | None, usable_slots: int, spare: Issued | None = None) -> Issued:
        """Issue a transfer and return; the bytes have moved when `end` is reached. Uses `spare` events, if given.

        Raises what goes wrong; a part of it may be under way then, until `settle`.
        """
        slots = self._arena.slots
        block_ids, slot_ids = checked_pairs(copy, blocks=self._cache.blocks, slots=slots, usable_slots=usable_slots)
        if after is not None:
            after()
        self.memory.restore_table(self._kernels)
        # Making an event takes 25 microseconds.
        issued = spare or Issued(self._gpu.event(timing=True), self._gpu.event(timing=True))
        self._begin = issued.begin
        self._commands = self._gpu.commands()  # what an earlier one may have left when it failed is forgotten
        for at in range(0, len(block_ids), PAIRS_MAX):
            part = slice(at, at + PAIRS_MAX)
            self._commands.run(self.gaps)  # before its index is written over
            add = self._add_staged if self._staged else self._add_direct
            add(block_ids[part], slot_ids[part])
        self._mark_begin(self._last)
        self._commands.record(self._last, issued.end)
        self._commands.run(self.gaps)
        return issued

    def settle(self) -> None:
        """Block until nothing of this lane runs any more. Raises if the device is lost."""
        for stream in (self._kernels, self._copies, self._gap.other):
            stream.synchronize()

    def _add_direct(self, block_ids: Ids, slot_ids: Ids) -> None:
        self._order(self._kernels, self._copies)  # after what the fence made the kernels wait for
        bounds = chunks(len(block_ids), self._rows_max)
        for first, last in pairwise(bounds):
            self._keep_distance()
            ranges = fragment_ranges(self._cache, block_ids[first:last], slot_ids[first:last], self._piece_bytes)
            self._copy(ranges, device=0)
            self._end_chunk()

    def _add_staged(self, block_ids: Ids, slot_ids: Ids) -> None:
        slot_bytes = self._arena.slot_bytes
        bounds = chunks(len(block_ids), self._rows_max)
        parts = chunked(slot_ranges(slot_ids, slot_bytes, self._piece_bytes, bounds), slot_bytes, bounds)
        index = self.memory.fetch_index(self._commands, self._kernels, block_ids, slot_ids)
        for (first, last), ranges in zip(pairwise(bounds), parts, strict=True):
            self._keep_distance()
            pairs, copies = last - first, len(ranges.size)
            if copies > 1 and pairs * slot_bytes < _DMA_BYTES_MIN * copies:
                self._mark_begin(self._kernels)
                self._move_rows(index, first, pairs, self._host_address, scattered=True)
                self._order(self._kernels, self._last)
            else:
                buffer = self.memory.buffers[self._chunks % len(self.memory.buffers)]
                move = self._store_chunk if self._direction is Direction.STORE else self._load_chunk
                move(index, first, pairs, ranges, buffer)
                buffer.empty = self._done[self._chunks % _AHEAD]
            self._end_chunk()

    def _store_chunk(self, index: Index, first: int, pairs: int, ranges: Ranges, buffer: Buffer) -> None:
        self._commands.wait(self._kernels, buffer.empty)
        self._move_rows(index, first, pairs, buffer.memory.address, scattered=False)
        self._order(self._kernels, self._copies)
        self._copy(ranges, device=buffer.memory.address)

    def _load_chunk(self, index: Index, first: int, pairs: int, ranges: Ranges, buffer: Buffer) -> None:
        self._commands.wait(self._copies, buffer.empty)
        self._copy(ranges, device=buffer.memory.address)
        self._order(self._copies, self._kernels)
        self._move_rows(index, first, pairs, buffer.memory.address, scattered=False)

    def _keep_distance(self) -> None:
        """Wait for the GPU when it is `_AHEAD` chunks behind, until half of them are done: the rest keeps it busy."""
        half = _AHEAD // 2
        if self._chunks >= _AHEAD and self._chunks % half == 0:
            self._commands.synchronize(self._done[(self._chunks - half - 1) % _AHEAD])

    def _end_chunk(self) -> None:
        self._commands.record(self._last, self._done[self._chunks % _AHEAD])
        self._chunks += 1

    def _order(self, first: Stream, second: Stream) -> None:
        """Let what comes next on the second stream begin after what was issued on the first."""
        if first is not second:
            self._commands.record(first, self._between)
            self._commands.wait(second, self._between)

    def _move_rows(self, index: Index, first: int, pairs: int, rows_at: int, *, scattered: bool) -> None:
        self._move(
            self._commands,
            self._kernels,
            index.device,
            first=first,
            pairs=pairs,
            rows_at=rows_at,
            row_bytes=self._cache.block_bytes,
            scattered=scattered,
        )

    def _copy(self, ranges: Ranges, *, device: int) -> None:
        self._mark_begin(self._copies)
        device_end, host_end = device + ranges.device, self._host_address + ranges.host
        to, source = (host_end, device_end) if self._direction is Direction.STORE else (device_end, host_end)
        self._commands.copy(self._copies, to, source, ranges.size, self._gap)

    def _mark_begin(self, stream: Stream) -> None:
        if self._begin is not None:
            self._commands.record(stream, self._begin)
            self._begin = None
