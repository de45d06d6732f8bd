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

import numpy as np
import numpy.typing as npt

from kvtide.copy.arena import HostArena
from kvtide.copy.base import Direction, Fence
from kvtide.copy.cuda.flags import Flags
from kvtide.copy.cuda.geometry import CudaCache, tiling
from kvtide.copy.cuda.gpu import Event, Gap, Gpu, Stream
from kvtide.copy.cuda.issuing import NO_GAPS, Gaps
from kvtide.copy.cuda.lane_memory import PAIRS_MAX, Buffer, Columns, Index, LaneMemory
from kvtide.copy.cuda.lane_parts import HostRows, Issued, Pairs, Part
from kvtide.copy.cuda.measure import Route
from kvtide.copy.cuda.packed_tiles import WORD_BYTES, packed_tiles
from kvtide.copy.cuda.ranges import Ranges, checked_pairs, chunked, chunks, fragment_ranges, slot_ranges
from kvtide.copy.ids import Ids
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Copy

_AHEAD = 8
"""Chunks that the GPU may be behind. So much is left at most of an issued transfer: 10 ms, with the usual buffers."""
_TURN_BYTES = 16 << 20
"""After so many bytes others get their turn."""
_DMA_BYTES_MIN = 128 << 10
"""Where slots are scattered and runs are shorter than this, a kernel on pinned memory is faster than many copies."""


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
        unpacked: UnpackedRows | None = None,
        trial: PackingTrial | None = None,
    ) -> None:
        self._gpu, self._direction, self._cache, self._arena = gpu, direction, cache, arena
        self._unpacked, self._trial = unpacked, trial
        self._piece_bytes = math.gcd(piece_bytes, _TURN_BYTES)
        """Copies are cut at multiples of this, so that each is in one registration, and no longer than a turn."""
        self._staged = route is Route.STAGED
        self._buffer_bytes = max(cache.block_bytes, min(PAIRS_MAX * cache.block_bytes, staging_bytes))
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
        tables: list[Columns] = [(tiles.table, tiles.element_bytes)]
        if unpacked is not None:
            tables.append((packed_tiles(cache), WORD_BYTES))
        self.memory = LaneMemory(
            gpu,
            tables,
            self._copies,
            buffers=staging_buffers if self._staged else 0,
            buffer_bytes=self._buffer_bytes,
            pairs_max=max(cache.blocks, arena.slots),
        )
        plain = gpu.mover(direction, tiles, self.memory.tables[0].device)
        address = int(arena.memory.ctypes.data)
        self._slots = self._rows = HostRows(address, cache.block_bytes, plain, packed=False)
        """Where slots are, and rows of blocks that are not packed."""
        if unpacked is not None:
            columns = len(self.memory.tables[1].on_host[0])
            move = gpu.packed_mover(direction, columns, self.memory.tables[1].device)
            self._slots = HostRows(address, arena.slot_bytes, move, packed=True)
            self._rows = HostRows(int(unpacked.arena.memory.ctypes.data), cache.block_bytes, plain, packed=False)
        begin = trial.plain_at if trial is not None else 0
        self._beyond = HostRows(address, cache.block_bytes, plain, packed=False, begin=begin)
        """Slots beyond the first ones, if it turns out that blocks are not packed."""

    def enter(self) -> None:
        """Get the calling thread ready, and the kernels compiled."""
        self._gpu.enter(self._kernels)
        for index in self.memory.indexes[:1]:
            self._commands.fetch(self._kernels, index.device, index.host[:0])
            for place in {self._slots, self._rows}:
                for scattered in (False, True):
                    self._move_rows(place, Pairs(index, 0, 0), place.address, scattered=scattered)
        self._commands.run(NO_GAPS)

    def issue(self, copy: Copy, after: Fence | None, usable_slots: int, spare: Issued | None = None) -> Issued:
        """Issue a transfer and return; the bytes have moved when `end` is reached. Uses `spare` events, if given.

        Raises what goes wrong; a part of it may be under way then, until `settle`.
        """
        slots = self._arena.slots
        block_ids, slot_ids = checked_pairs(copy, blocks=self._cache.blocks, slots=slots, usable_slots=usable_slots)
        if after is not None:
            after()
        if self._unpacked is None:
            return self._issue([(self._slots, block_ids, slot_ids)], spare)
        if self._trial is not None and self._trial.is_plain:
            return self._issue(self._plain_parts(self._unpacked, block_ids, slot_ids, self._trial.first), spare)
        if self._direction is Direction.STORE:
            self._unpacked.forget(slot_ids.tolist())
            if not self._unpacked.habit.is_worth_trying():
                return self._issue_unpacked(self._unpacked, block_ids, slot_ids, spare)
            flags = Flags.of(self._gpu, block_ids, slot_ids, spare.flags if spare is not None else None)
            return self._issue([(self._slots, block_ids, slot_ids)], spare, flags)
        return self._issue(self._loaded_parts(self._unpacked, block_ids, slot_ids), spare)

    def _issue_unpacked(self, unpacked: UnpackedRows, block_ids: Ids, slot_ids: Ids, spare: Issued | None) -> Issued:
        """Store blocks as they are, as far as there are rows."""
        not_kept = unpacked.place(slot_ids.tolist())
        rows = unpacked.rows_of(slot_ids)
        there = rows >= 0
        issued = self._issue([(self._rows, block_ids[there], rows[there])], spare)
        return issued._replace(not_kept=tuple(not_kept))

    def _loaded_parts(self, unpacked: UnpackedRows, block_ids: Ids, slot_ids: Ids) -> list[Part]:
        """Return what of a load is packed, and what is in rows."""
        rows = unpacked.rows_of(slot_ids)
        there = rows >= 0
        return [(self._slots, block_ids[~there], slot_ids[~there]), (self._rows, block_ids[there], rows[there])]

    def _plain_parts(self, unpacked: UnpackedRows, block_ids: Ids, slot_ids: Ids, first: int) -> list[Part]:
        """Return the parts of a transfer of blocks that are not packed: the first slots have rows, as many as they are.

        What is loaded from there may have been packed before that was decided.
        """
        beyond = slot_ids >= first
        parts: list[Part] = [(self._beyond, block_ids[beyond], slot_ids[beyond] - first)]
        block_ids, slot_ids = block_ids[~beyond], slot_ids[~beyond]
        if self._direction is Direction.LOAD:
            return parts + self._loaded_parts(unpacked, block_ids, slot_ids)
        unpacked.forget(slot_ids.tolist())
        unpacked.place(slot_ids.tolist())
        return [*parts, (self._rows, block_ids, unpacked.rows_of(slot_ids))]

    def issue_rows(self, blocks: Ids, rows: Ids, spare: Issued | None = None) -> Issued:
        """Issue the copies between blocks and rows of blocks that are not packed. See `issue`."""
        return self._issue([(self._rows, blocks, rows)], spare)

    def _issue(self, parts: list[Part], spare: Issued | None, flags: Flags | None = None) -> Issued:
        self.memory.restore_table(self._kernels)
        # Making an event takes 25 microseconds.
        begin, end, *_ = spare or (self._gpu.event(timing=True), self._gpu.event(timing=True))
        self._begin = begin
        self._commands = self._gpu.commands()  # what an earlier one may have left when it failed is forgotten
        for place, block_ids, row_ids in parts:
            for at in range(0, len(block_ids), PAIRS_MAX):
                part = slice(at, at + PAIRS_MAX)
                self._commands.run(self.gaps)  # before its index is written over
                if self._staged:
                    self._add_staged(place, block_ids[part], row_ids[part], flags.part(part) if flags else None)
                else:
                    self._add_direct(place, block_ids[part], row_ids[part])
        self._mark_begin(self._last)
        self._commands.record(self._last, end)
        self._commands.run(self.gaps)
        return Issued(begin, end, flags, sum(len(ids) for place, ids, _ in parts if not place.packed))

    def settle(self) -> None:
        """Block until nothing of this lane runs any more. Raises if the device is lost."""
        for stream in (self._kernels, self._copies, self._gap.other):
            stream.synchronize()

    def _add_direct(self, place: HostRows, block_ids: Ids, row_ids: Ids) -> None:
        self._order(self._kernels, self._copies)  # after what the fence made the kernels wait for
        bounds = chunks(len(block_ids), self._buffer_bytes // place.row_bytes)
        for first, last in pairwise(bounds):
            self._keep_distance()
            ranges = fragment_ranges(self._cache, block_ids[first:last], row_ids[first:last], self._piece_bytes)
            self._copy(place, ranges, device=0)
            self._end_chunk()

    def _add_staged(self, place: HostRows, block_ids: Ids, row_ids: Ids, flags: npt.NDArray[np.int32] | None) -> None:
        row_bytes = place.row_bytes
        bounds = chunks(len(block_ids), self._buffer_bytes // row_bytes)
        ranges_of_all = slot_ranges(row_ids, row_bytes, self._piece_bytes, bounds, begin=place.begin)
        parts = chunked(ranges_of_all, row_bytes, bounds)
        index = self.memory.fetch_index(self._commands, self._kernels, block_ids, row_ids)
        if flags is not None:
            self._commands.wait(self._kernels, index.flags_taken)
            self._commands.fetch(self._kernels, index.flags, self.memory.zeros[: -(-len(block_ids) // 2)])
        for (first, last), ranges in zip(pairwise(bounds), parts, strict=True):
            self._keep_distance()
            pairs, copies = last - first, len(ranges.size)
            if copies > 1 and pairs * row_bytes < _DMA_BYTES_MIN * copies:
                self._mark_begin(self._kernels)
                self._move_rows(place, Pairs(index, first, pairs), place.address + place.begin, scattered=True)
                self._order(self._kernels, self._last)
            else:
                buffer = self.memory.buffers[self._chunks % len(self.memory.buffers)]
                self._move_chunk(place, Pairs(index, first, pairs), ranges, buffer)
                buffer.empty = self._done[self._chunks % _AHEAD]
            self._end_chunk()
        if flags is not None:
            self._take_flags(index, flags)

    def _move_chunk(self, place: HostRows, pairs: Pairs, ranges: Ranges, buffer: Buffer) -> None:
        at = buffer.memory.address
        if self._direction is Direction.STORE:
            self._commands.wait(self._kernels, buffer.empty)
            self._move_rows(place, pairs, at, scattered=False)
            self._order(self._kernels, self._copies)
            self._copy(place, ranges, device=at)
        else:
            self._commands.wait(self._copies, buffer.empty)
            self._copy(place, ranges, device=at)
            self._order(self._copies, self._kernels)
            self._move_rows(place, pairs, at, scattered=False)

    def _take_flags(self, index: Index, flags: npt.NDArray[np.int32]) -> None:
        """Bring to the host what the kernels say of blocks that do not fit, behind the last chunk."""
        self._order(self._kernels, self._copies)
        to, nbytes = np.array([flags.ctypes.data]), np.array([flags.nbytes])
        self._commands.copy(self._copies, to, np.array([index.flags.address]), nbytes)
        self._commands.record(self._copies, index.flags_taken)

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

    def _move_rows(self, place: HostRows, pairs: Pairs, rows_at: int, *, scattered: bool) -> None:
        more = {"flags": pairs.of.flags} if place.packed else {}
        place.move(
            self._commands,
            self._kernels,
            pairs.of.device,
            first=pairs.first,
            pairs=pairs.pairs,
            rows_at=rows_at,
            row_bytes=place.row_bytes,
            scattered=scattered,
            **more,
        )

    def _copy(self, place: HostRows, ranges: Ranges, *, device: int) -> None:
        self._mark_begin(self._copies)
        device_end, host_end = device + ranges.device, place.address + ranges.host
        to, source = (host_end, device_end) if self._direction is Direction.STORE else (device_end, host_end)
        self._commands.copy(self._copies, to, source, ranges.size, self._gap)

    def _mark_begin(self, stream: Stream) -> None:
        if self._begin is not None:
            self._commands.record(stream, self._begin)
            self._begin = None
