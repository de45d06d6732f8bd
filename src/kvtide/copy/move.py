"""How bytes get from device blocks to host slots and back on a CPU.

Measured on 2 cores with numpy 2.4, fragments of 256 B to 1 MiB, random blocks, 16 MiB a transfer. One run each on
a quiet machine, unless it says otherwise; repeat before tuning by it.

- numpy lets go of the GIL in calls that touch more than 500 elements, and keeps it in smaller ones (seen with the
  switch interval set so high that nobody else can take it; `tests/copy/test_threads.py` does the same). So: few
  calls, and many elements in each.
- A thread that multiplied small matrices beside a loop of copies that keep the GIL had 0 to 3% of its speed, beside
  fancy indexing in pieces of 1 MiB 56 to 104%. On the same machine under foreign load it had 21 to 51% beside such
  a loop. That it waits for the interpreter's switch interval is the likely cause, but shortening the interval did
  not help in every case, so it is not proven.
- Fancy indexing gathers into a temporary array and scatters from there: two passes in two calls, whatever the
  number of blocks. Pieces of 256 KiB are faster alone (8 to 10 GB/s, 1 MiB: 6 to 7, from 4 KiB fragments on), but
  beside small matrix products those ran at 43 to 45%, with 1 MiB at 56 to 74%.
- Small fragments are faster as one void element than as many bytes (256 B: 3.3 against 1.7 GB/s). At 4 KiB and more
  there is little difference, but a piece could have 500 elements or fewer, and the GIL would be kept.
- Blocks and slots that both follow one another are copied by a slice in one pass, without the temporary array: 9 to
  13 GB/s against 4 to 9 when a run has 128 KiB or more. Shorter runs in many separate regions lose to fancy calls.
- `np.take` with `out=` copies the whole source first unless it is contiguous (4 rows out of a strided 64 MiB: 19 ms
  against 3 us). `ctypes.memmove` is a loop again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvtide.copy.base import Direction
from kvtide.copy.ids import Ids, checked_ids
from kvtide.copy.regions import DeviceCache, Span
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError

_PIECE_BYTES = 1 << 20
_RUN_BYTES_MIN = 128 << 10
_VOID_BYTES_MAX = 1 << 10


class Slots(Protocol):
    """Host memory in slots of one size: an arena, or a part of one."""

    @property
    def slots(self) -> int:
        """How many there are."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of each."""

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The slots as rows of bytes."""


class Moved(NamedTuple):
    """What became of a transfer that did not fail."""

    nbytes: int = 0
    saved_bytes: int = 0
    """So many bytes less than the blocks have, because they were packed."""
    unpacked_blocks: int = 0
    """Stores: blocks that do not pack."""
    not_kept: tuple[int, ...] = ()
    """Stores: slots that there was no place for."""


class BlockMover:
    """Copies blocks between a device cache and a host arena, in the thread that calls. Keeps no state."""

    def __init__(self, device: DeviceCache, arena: Slots) -> None:
        if arena.slot_bytes != device.block_bytes:
            expected = f"the bytes of one device block, {device.block_bytes}"
            raise ConfigError("slot_bytes", arena.slot_bytes, expected)
        self.block_bytes = device.block_bytes
        self._blocks = device.blocks
        self._slots = arena.slots
        self._spans = [_SpanViews(span, device.blocks, arena) for span in device.spans]

    def move(self, direction: Direction, copy: Copy) -> Moved:
        """Move all blocks of `copy`. Where one does not exist, raises CopyError before any byte has moved."""
        blocks, slots = checked_ids(copy, blocks=self._blocks, slots=self._slots)
        if not len(blocks):
            return Moved()
        runs = list(_runs(blocks, slots))
        for span in self._spans:
            if span.row_bytes * len(blocks) >= _RUN_BYTES_MIN * len(runs):
                span.move_runs(direction, runs)
            else:
                span.move_scattered(direction, blocks, slots)
        return Moved(self.block_bytes * len(blocks))


class _SpanViews:
    """One span as seen from both sides: row `b` of the device views and row `s` of the host views match."""

    def __init__(self, span: Span, blocks: int, arena: Slots) -> None:
        self.row_bytes = span.row_bytes
        count, fragment_bytes, spacing = span.count, span.first.fragment_bytes, span.spacing
        if spacing == fragment_bytes:  # without gaps between them, the fragments are one
            count, fragment_bytes, spacing = 1, span.row_bytes, span.row_bytes

        def device_view(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            strides = (span.first.block_stride, spacing, 1)[: len(shape) + 1]
            return np.ndarray((blocks, *shape), dtype, span.memory, span.first.offset, strides)

        def host_view(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            strides = (arena.slot_bytes, fragment_bytes, 1)[: len(shape) + 1]
            return np.ndarray((arena.slots, *shape), dtype, arena.memory, span.slot_offset, strides)

        # The constructor of ndarray checks that all of a view lies inside its memory; as_strided does not.
        self._device = device_view((count, fragment_bytes), np.uint8)
        self._host = host_view((count, fragment_bytes), np.uint8)
        self._scatter_device, self._scatter_host = self._device, self._host
        if fragment_bytes <= _VOID_BYTES_MAX:
            element = np.dtype((np.void, fragment_bytes))
            shape = () if count == 1 else (count,)
            self._scatter_device, self._scatter_host = device_view(shape, element), host_view(shape, element)

    def move_runs(self, direction: Direction, runs: Sequence[tuple[slice, slice]]) -> None:
        for blocks, slots in runs:
            if direction is Direction.STORE:
                self._host[slots] = self._device[blocks]
            else:
                self._device[blocks] = self._host[slots]

    def move_scattered(self, direction: Direction, blocks: Ids, slots: Ids) -> None:
        rows = max(1, _PIECE_BYTES // self.row_bytes)
        for start in range(0, len(blocks), rows):
            some_blocks, some_slots = blocks[start : start + rows], slots[start : start + rows]
            if direction is Direction.STORE:
                self._scatter_host[some_slots] = self._scatter_device[some_blocks]
            else:
                self._scatter_device[some_blocks] = self._scatter_host[some_slots]


def _runs(blocks: Ids, slots: Ids) -> Iterator[tuple[slice, slice]]:
    """Yield the stretches in which blocks and slots both go up by one."""
    breaks = np.flatnonzero((np.diff(blocks) != 1) | (np.diff(slots) != 1)) + 1
    start = 0
    for end in (*breaks.tolist(), len(blocks)):
        block, slot, length = int(blocks[start]), int(slots[start]), end - start
        yield slice(block, block + length), slice(slot, slot + length)
        start = end
