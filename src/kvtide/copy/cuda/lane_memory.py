"""GPU memory that a lane takes: staging buffers, the pairs of transfers, and the table of fragments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtide.copy.cuda.gpu import Commands, DeviceMemory, Event, Gpu, Stream
from kvtide.copy.cuda.issuing import NO_GAPS
from kvtide.copy.ids import Ids

PAIRS_MAX = 16 << 10
"""Pairs of block and slot that are issued at a time."""
Columns = tuple[npt.NDArray[np.int64], int]
"""A table whose first row are addresses, and the bytes in which these are counted."""
_PAIR_BYTES = 16
_INDEXES = 3


@dataclass(slots=True, eq=False)
class Index:
    """Which blocks go to which slots, on both sides of the link."""

    host: npt.NDArray[np.int64]
    device: DeviceMemory
    fetched: Event
    """Reached when the host's side may be written to again."""
    flags: DeviceMemory
    """For each pair, whether its block does not pack."""
    flags_taken: Event
    """Reached when they may be written to again."""


@dataclass(slots=True, eq=False)
class Buffer:
    """A staging buffer."""

    memory: DeviceMemory
    empty: Event
    """Reached when what was last put in has been taken out."""


@dataclass(slots=True, eq=False)
class Table:
    """Where the parts of a block are, for kernels. Addresses are counted from the table."""

    device: DeviceMemory
    on_host: npt.NDArray[np.int64]


class LaneMemory:
    """Tables for kernels, and for lanes that stage: `buffers` of `buffer_bytes` each, and indexes."""

    def __init__(
        self, gpu: Gpu, tables: Sequence[Columns], copies: Stream, *, buffers: int, buffer_bytes: int, pairs_max: int
    ) -> None:
        self._gpu = gpu
        self.nbytes = 0
        """GPU memory taken."""
        index_bytes = _PAIR_BYTES * min(PAIRS_MAX, pairs_max)
        self.indexes = [self._make_index(index_bytes) for _ in range(_INDEXES if buffers else 0)]
        self.buffers = [Buffer(self._allocate(buffer_bytes), gpu.event()) for _ in range(buffers)]
        self.tables = [self._make_table(columns, copies) for columns in tables]
        self.zeros = self._pinned(index_bytes // 2)
        """As many as there are flags, to begin with."""
        self.zeros[:] = 0
        self.table_lost = False
        """GPU memory was given back, and taken again: the table has to be fetched before the next transfer."""

    def restore_table(self, stream: Stream) -> None:
        """Fetch the table again, if it was lost."""
        if self.table_lost:
            commands = self._gpu.commands()
            for table in self.tables:
                commands.fetch(stream, table.device, table.on_host)
            commands.run(NO_GAPS)
            self.table_lost = False

    def fetch_index(self, commands: Commands, stream: Stream, block_ids: Ids, slot_ids: Ids) -> Index:
        """Bring the pairs of a transfer to GPU memory. All commands that fetched others were issued."""
        index = self.indexes.pop(0)
        self.indexes.append(index)
        if not index.fetched.query():  # hardly ever, and to wait is to let go of the GIL
            index.fetched.synchronize()
        rows = index.host[: len(block_ids)]
        rows[:, 0] = block_ids
        rows[:, 1] = slot_ids
        commands.fetch(stream, index.device, rows)
        commands.record(stream, index.fetched)
        return index

    def _allocate(self, nbytes: int) -> DeviceMemory:
        memory = self._gpu.allocate(nbytes)
        self.nbytes += nbytes
        return memory

    def _make_index(self, nbytes: int) -> Index:
        host, device, flags = self._pinned(nbytes).reshape(-1, 2), self._allocate(nbytes), self._allocate(nbytes // 2)
        return Index(host, device, self._gpu.event(), flags, self._gpu.event())

    def _pinned(self, nbytes: int) -> npt.NDArray[np.int64]:
        return self._gpu.allocate_pinned(nbytes).view(np.int64)

    def _make_table(self, columns: Columns, copies: Stream) -> Table:
        numbers, element_bytes = columns
        device, table = self._allocate(numbers.nbytes), self._pinned(numbers.nbytes).reshape(numbers.shape)
        table[:] = numbers
        table[0] -= device.address // element_bytes
        commands = self._gpu.commands()
        commands.copy(copies, *np.array([[device.address], [table.ctypes.data], [table.nbytes]], dtype=np.int64))
        commands.run(NO_GAPS)
        copies.synchronize()
        return Table(device, table)
