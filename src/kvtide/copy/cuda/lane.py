"""One direction of traffic: streams, staging buffers, and the order in which the GPU goes through them.

A transfer is cut into chunks of one staging buffer. On two streams:

    kernels  fetch the index, gather into buffer ─┐    or, for a load,         ┌─► scatter from buffer
    copies                                        └─► DMA       DMA to buffer ─┘

Events keep a DMA from reading a buffer that is not full, and both from filling one that is not empty. What a stream
waits for is fixed when the wait is issued, so an event can be recorded anew at once, and the host never waits for any
of that.

It waits only in order not to run further ahead than `AHEAD` chunks, in the lane's own thread, and then issues half as
many in one go.

Whenever the thread runs Python it takes the GIL away from somebody: an engine that launches its kernels from Python was
slowed down by a third while blocks were copied. So a transfer is written down first, waits included, and then issued
in one call without the GIL (see `issuing`); where nobody computes, in two.

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
from kvtide.copy.cuda.geometry import CudaCache
from kvtide.copy.cuda.gpu import Event, Gpu, Stream
from kvtide.copy.cuda.issuing import Gaps
from kvtide.copy.cuda.lane_kit import AHEAD, TURN_BYTES, LaneKit
from kvtide.copy.cuda.lane_memory import PAIRS_MAX, Buffer, Index
from kvtide.copy.cuda.lane_parts import HostRows, Issued, Pairs, Part
from kvtide.copy.cuda.ranges import Ranges, checked_pairs, chunked, chunks, fragment_ranges, slot_ranges, turns
from kvtide.copy.ids import Ids
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Copy

_DMA_BYTES_MIN = 128 << 10
"""Where slots are scattered and runs are shorter than this, a kernel on pinned memory is faster than many copies."""
_PAIRS_AT_ONCE = 1024
"""Of a direct transfer, ranges are computed for so many: for more the first one would begin to move late."""


class Lane:
    """Issues the transfers of one direction. One thread calls `enter` and then `issue` and `settle`.

    Nothing that was issued with the same kit before is under way.
    """

    def __init__(
        self,
        gpu: Gpu,
        direction: Direction,
        cache: CudaCache,
        arena: HostArena,
        kit: LaneKit,
        *,
        piece_bytes: int,
        unpacked: UnpackedRows | None = None,
        trial: PackingTrial | None = None,
    ) -> None:
        self._gpu, self._direction, self._cache, self._arena = gpu, direction, cache, arena
        self._unpacked, self._trial = unpacked, trial
        self._piece_bytes = math.gcd(piece_bytes, TURN_BYTES)
        """Copies are cut at multiples of this, so that each is in one registration, and no longer than a turn."""
        self._kit = kit
        self._staged, self._buffer_bytes, self.memory = kit.staged, kit.buffer_bytes, kit.memory
        self._kernels, self._copies, self._gap = kit.kernels, kit.copies, kit.gap
        self._done, self._between = kit.done, kit.between
        self.gaps: Gaps = np.zeros(1, dtype=np.int64)
        """Others have small copies to do, and are let in. Looked at while a transfer is issued."""
        self._commands = gpu.commands()
        """Of the transfer that is being written down."""
        self._last = self._kernels if self._staged and direction is Direction.LOAD else self._copies
        """Where every chunk ends, so that transfers end in the order in which they were issued."""
        self._entered = False
        self._chunks = 0
        """Issued so far."""
        self._begin: Event | None = None
        """To be recorded before the next copy."""
        self._is_first = False
        """The next chunk is the first of its transfer. Where nobody computes, it moves while others are written down.

        Beside others it does not: to get the GIL back for the rest may take longer than this chunk.
        """
        address = int(arena.memory.ctypes.data)
        self._slots = self._rows = HostRows(address, cache.block_bytes, kit.move, packed=False)
        """Where slots are, and rows of blocks that are not packed."""
        if unpacked is not None:
            assert kit.move_packed is not None
            self._slots = HostRows(address, arena.slot_bytes, kit.move_packed, packed=True)
            self._rows = HostRows(int(unpacked.arena.memory.ctypes.data), cache.block_bytes, kit.move, packed=False)
        begin = trial.plain_at if trial is not None else 0
        self._beyond = HostRows(address, cache.block_bytes, kit.move, packed=False, begin=begin)
        """Slots beyond the first ones, if it turns out that blocks are not packed."""

    def enter(self) -> None:
        """Get the calling thread ready, and the kernels compiled."""
        self._enter_stream()
        self._kit.compile(self._gpu)

    def _enter_stream(self) -> None:
        """Make the stream current that fences are about, once."""
        if not self._entered:
            self._gpu.enter(self._kernels)
            self._entered = True

    def issue(self, copy: Copy, after: Fence | None, usable_slots: int, spare: Issued | None = None) -> Issued:
        """Issue a transfer and return; the bytes have moved when `end` is reached. Uses `spare` events, if given.

        Raises what goes wrong; a part of it may be under way then, until `settle`.
        """
        self._enter_stream()
        slots = self._arena.slots
        block_ids, slot_ids = checked_pairs(copy, blocks=self._cache.blocks, slots=slots, usable_slots=usable_slots)
        if after is not None:
            after()
        if self._unpacked is None:
            return self._issue([(self._slots, block_ids, slot_ids)], spare)
        if self._trial is not None and self._trial.is_plain:
            return self._issue(self._plain_parts(self._unpacked, block_ids, slot_ids, self._trial.first), spare)
        if self._direction is Direction.STORE:
            self._unpacked.forget(slot_ids)
            if not self._unpacked.habit.is_worth_trying():
                return self._issue_unpacked(self._unpacked, block_ids, slot_ids, spare)
            flags = Flags.of(self._gpu, block_ids, slot_ids, spare.flags if spare is not None else None)
            return self._issue([(self._slots, block_ids, slot_ids)], spare, flags)
        return self._issue(self._loaded_parts(self._unpacked, block_ids, slot_ids), spare)

    def _issue_unpacked(self, unpacked: UnpackedRows, block_ids: Ids, slot_ids: Ids, spare: Issued | None) -> Issued:
        """Store blocks as they are, as far as there are rows."""
        not_kept = unpacked.place(slot_ids)
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
        unpacked.forget(slot_ids)
        unpacked.place(slot_ids)
        return [*parts, (self._rows, block_ids, unpacked.rows_of(slot_ids))]

    def issue_rows(self, blocks: Ids, rows: Ids, spare: Issued | None = None) -> Issued:
        """Issue the copies between blocks and rows of blocks that are not packed. See `issue`."""
        return self._issue([(self._rows, blocks, rows)], spare)

    def _issue(self, parts: list[Part], spare: Issued | None, flags: Flags | None = None) -> Issued:
        self.memory.restore_table(self._kernels)
        # Making an event takes 25 microseconds.
        begin, end, *_ = spare or (self._gpu.event(timing=True), self._gpu.event(timing=True))
        self._begin, self._is_first = begin, True
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
        for at in range(0, len(block_ids), _PAIRS_AT_ONCE):
            part = slice(at, at + _PAIRS_AT_ONCE)
            ranges = fragment_ranges(self._cache, block_ids[part], row_ids[part], self._piece_bytes)
            for chunk in turns(ranges.size, self._buffer_bytes):
                self._keep_distance()
                self._copy(place, Ranges(*(column[chunk] for column in ranges)), device=0)
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
                buffer.empty = self._done[self._chunks % AHEAD]
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
        """Wait for the GPU when it is `AHEAD` chunks behind, until half of them are done: the rest keeps it busy."""
        half = AHEAD // 2
        if self._chunks >= AHEAD and self._chunks % half == 0:
            self._commands.synchronize(self._done[(self._chunks - half - 1) % AHEAD])

    def _end_chunk(self) -> None:
        self._commands.record(self._last, self._done[self._chunks % AHEAD])
        self._chunks += 1
        if self._is_first and not self.gaps[0]:
            self._commands.run(self.gaps)
        self._is_first = False

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
