"""A GPU that exists only in the tests: streams run in any order that their events allow, chosen by a seed.

Device memory is numpy memory, addressed by its real addresses. Commands are issued by `run`, and nothing issued runs at
once: every look at an event runs a few operations of randomly chosen streams. So an engine that forgets an event gets
wrong bytes with some seeds.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvtide.copy.base import Direction
from kvtide.copy.cuda.geometry import Tiling
from kvtide.copy.cuda.gpu import Addresses, Commands, DeviceMemory, Event, Gap, Gpu, Mover, PackedMover, Stream
from kvtide.copy.cuda.issuing import Gaps
from kvtide.copy.cuda.ranges import turns
from kvtide.copy.packing import TILE_BYTES, TILE_VALUES, pack_tiles, unpack_tiles

WANT_CONTEXT = {"allocate", "copy", "fetch", "move", "pin", "unpin"}
"""Calls of the driver, which refuses them in a thread that has neither entered nor made the GPU active."""


class LostError(RuntimeError):
    pass


class NoContextError(RuntimeError):
    pass


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.records = 0
        self.reached = 0
        self.reached_at = 0

    def record(self, stream: Stream | None = None) -> None:
        with self._gpu.call("record"):
            self.records += 1
            number = self.records
            self._gpu.known(stream).operations.append(Operation(lambda: self._reach(number)))

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream, or the one that is current in this thread, wait: what torch.cuda.Event.wait does."""
        self._gpu.known(stream).wait_event(self)

    def query(self) -> bool:
        with self._gpu.call("query"):
            self._gpu.run_some()
            return self.reached >= self.records

    def synchronize(self) -> None:
        with self._gpu.call("synchronize"):
            self._gpu.run_until(lambda: self.reached >= self.records)

    def elapsed_time(self, end_event: Event) -> float:
        assert isinstance(end_event, FakeEvent)
        return float(end_event.reached_at - self.reached_at)

    def _reach(self, number: int) -> None:
        self.reached = max(self.reached, number)
        self.reached_at = self._gpu.clock


class Operation:
    """Runs once it is at the head of its stream and `ready`."""

    def __init__(self, run: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        self.run = run
        self.ready = ready


class FakeStream:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.operations: deque[Operation] = deque()

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        with self._gpu.call("wait_event"):
            number = event.records
            self.operations.append(Operation(lambda: None, lambda: event.reached >= number))

    def synchronize(self) -> None:
        with self._gpu.call("synchronize"):
            self._gpu.run_until(lambda: not self.operations)


class FakeMemory:
    def __init__(self, array: npt.NDArray[np.uint8]) -> None:
        self.array = array
        self.address = int(array.ctypes.data)


class FakeCommands:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._commands: list[Callable[[Gaps], None]] = []

    def copy(self, stream: Stream, to: Addresses, source: Addresses, sizes: Addresses, gap: Gap | None = None) -> None:
        for turn in turns(sizes, gap.turn_bytes if gap is not None else 1 << 60):
            self._commands.append(partial(self._issue_copies, stream, to[turn], source[turn], sizes[turn]))
            if gap is not None:
                self._leave(stream, gap)

    def _issue_copies(self, stream: Stream, to: Addresses, source: Addresses, sizes: Addresses, _: Gaps) -> None:
        with self._gpu.call("copy"):
            for one in zip(to.tolist(), source.tolist(), sizes.tolist(), strict=True):
                self._gpu.check_inside(one[0], one[2])
                self._gpu.check_inside(one[1], one[2])
                self._gpu.known(stream).operations.append(Operation(partial(_memmove, *one)))

    def _leave(self, stream: Stream, gap: Gap) -> None:
        between = FakeCommands(self._gpu)
        between.record(stream, gap.our_turn)
        between.wait(gap.other, gap.our_turn)
        between.record(gap.other, gap.their_turn)
        between.wait(stream, gap.their_turn)
        self._commands.append(lambda gaps: between.carry_out(gaps) if gaps[0] else None)

    def record(self, stream: Stream, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        self._commands.append(lambda _: event.record(stream))

    def wait(self, stream: Stream, event: Event) -> None:
        self._commands.append(lambda _: self._gpu.known(stream).wait_event(event))

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        self._commands.append(lambda _: event.synchronize())

    def fetch(self, stream: Stream, to: DeviceMemory, pinned: Addresses) -> None:
        def issue(_: Gaps) -> None:
            with self._gpu.call("fetch"):
                self._gpu.check_reachable(int(pinned.ctypes.data), pinned.nbytes)
                self._gpu.check_reachable(to.address, pinned.nbytes)
                work = partial(_memmove, to.address, int(pinned.ctypes.data), pinned.nbytes)
                self._gpu.known(stream).operations.append(Operation(work))

        self._commands.append(issue)

    def move(self, stream: Stream, work: Operation) -> None:
        def issue(_: Gaps) -> None:
            with self._gpu.call("move"):
                self._gpu.known(stream).operations.append(work)

        self._commands.append(issue)

    def run(self, gaps: Gaps) -> None:
        self._gpu.calls["run"] += bool(self._commands)
        self.carry_out(gaps)

    def carry_out(self, gaps: Gaps) -> None:
        commands, self._commands = self._commands, []
        for command in commands:
            command(gaps)


class FakeGpu(Gpu):
    def __init__(self, seed: int = 0, *, pin_limit_bytes: int = 1 << 40) -> None:
        self.calls: Counter[str] = Counter()
        self.failing: dict[str, BaseException] = {}
        """Errors to be raised once, by call."""
        self.lost = False
        self.pinned: dict[int, int] = {}
        self.pin_limit_bytes = pin_limit_bytes
        self.clock = 0
        self._memory: dict[int, int] = {}
        self._kept: list[object] = []
        self.allocated: list[npt.NDArray[np.uint8]] = []
        """Device memory that was asked for."""
        self._rng = random.Random(seed)
        self._lock = threading.RLock()
        self._streams: list[FakeStream] = []
        self._current = threading.local()

    # ------------------------------------------------------------------ for tests

    def adopt(self, array: npt.NDArray[np.uint8]) -> int:
        """Call an array device memory; returns its address."""
        self._memory[int(array.ctypes.data)] = array.nbytes
        self._kept.append(array)
        return int(array.ctypes.data)

    def run_on(self, stream: Stream, work: Callable[[], None]) -> None:
        """Issue a piece of compute."""
        with self._lock:
            self.known(stream).operations.append(Operation(work))

    # ------------------------------------------------------------------ the interface

    def enter(self, stream: Stream | None = None) -> None:
        self._current.stream = stream
        self._current.has_context = True

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        before = self._has_context
        self._current.has_context = True
        try:
            yield
        finally:
            self._current.has_context = before

    @property
    def _has_context(self) -> bool:
        return getattr(self._current, "has_context", False)

    def prove(self) -> None:
        self.calls["prove"] += 1

    def stream(self) -> FakeStream:
        with self._lock:
            self._streams.append(FakeStream(self))
            return self._streams[-1]

    def event(self, *, timing: bool = False) -> FakeEvent:
        return FakeEvent(self)

    def allocate(self, nbytes: int) -> FakeMemory:
        with self.call("allocate"):
            memory = np.full(nbytes + 256, 0xA5, np.uint8)
            memory = memory[-memory.ctypes.data % 256 :][:nbytes]
            self.adopt(memory)
            self.allocated.append(memory)
            return FakeMemory(memory)

    def allocate_pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        memory = np.full(nbytes, 0xB7, np.uint8)  # as a real one: with what was there before
        self.adopt(memory)
        return memory

    def commands(self) -> FakeCommands:
        return FakeCommands(self)

    def mover(self, direction: Direction, tiling: Tiling, table: DeviceMemory) -> Mover:
        def move(
            commands: Commands,
            stream: Stream,
            index: DeviceMemory,
            *,
            first: int,
            pairs: int,
            rows_at: int,
            row_bytes: int,
            scattered: bool,
        ) -> None:
            assert isinstance(commands, FakeCommands)
            rows = Rows(index.address, first, pairs, rows_at, row_bytes, scattered)
            commands.move(stream, Operation(lambda: self._move_tiles(direction, tiling, table.address, rows)))

        return move

    def packed_mover(self, direction: Direction, tiles: int, table: DeviceMemory) -> PackedMover:
        def move(
            commands: Commands,
            stream: Stream,
            index: DeviceMemory,
            *,
            flags: DeviceMemory,
            first: int,
            pairs: int,
            rows_at: int,
            row_bytes: int,
            scattered: bool,
        ) -> None:
            assert isinstance(commands, FakeCommands)
            rows = Rows(index.address, first, pairs, rows_at, row_bytes, scattered)
            work = partial(self._move_packed, direction, tiles, table.address, rows, flags.address)
            commands.move(stream, Operation(work))

        return move

    def pin(self, address: int, nbytes: int) -> None:
        with self.call("pin"):
            if sum(self.pinned.values()) + nbytes > self.pin_limit_bytes:
                raise MemoryError("not so much can be locked")
            self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        with self.call("unpin"):
            del self.pinned[address]

    # ------------------------------------------------------------------ inside

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        with self._lock:
            self.calls[name] += 1
            if self.lost:
                raise LostError("an illegal memory access was encountered")
            if name in WANT_CONTEXT and not self._has_context:
                raise NoContextError(f"{name}: CUDA_ERROR_INVALID_CONTEXT, invalid device context")
            error = self.failing.pop(name, None)
            if error is not None:
                raise error
            yield

    def known(self, stream: Stream | None) -> FakeStream:
        stream = stream or self._current.stream
        assert isinstance(stream, FakeStream)
        return stream

    def run_some(self) -> bool:
        """Run a few operations; returns whether any could run."""
        progress = False
        for _ in range(self._rng.randint(1, 6)):
            ready = [s for s in self._streams if s.operations and s.operations[0].ready()]
            if not ready:
                break
            # A favourite for a while, so that streams get far ahead of one another.
            stream = ready[0] if self._rng.random() < 0.3 else self._rng.choice(ready)
            self.clock += 1
            stream.operations.popleft().run()
            progress = True
        return progress

    def run_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            assert self.run_some(), "streams wait for each other"

    def _move_tiles(self, direction: Direction, tiling: Tiling, table_at: int, rows: Rows) -> None:
        """The numpy twin of `kernels.move_tiles`, with every address checked."""
        for row, region, nbytes in twin(tiling, table_at, rows):
            self.check_reachable(row, nbytes)
            self.check_reachable(region, nbytes)
            to, source = (row, region) if direction is Direction.STORE else (region, row)
            _memmove(to, source, nbytes)

    def _move_packed(self, direction: Direction, tiles: int, table_at: int, rows: Rows, flags_at: int) -> None:
        """The numpy twin of the packing kernels, with every address checked."""
        origin, stride, length = (4 * _array_at(table_at, 3 * tiles).reshape(3, -1)).tolist()
        assert not rows.pairs or set(length) == {2 * TILE_VALUES}
        index = _array_at(rows.index_at + 16 * rows.first, 2 * rows.pairs).reshape(-1, 2).tolist()
        for pair, (block, slot) in enumerate(index):
            row = rows.rows_at + (slot if rows.scattered else pair) * rows.row_bytes
            assert row % 16 == 0
            self.check_reachable(row, tiles * TILE_BYTES)
            for tile in range(tiles):
                region, packed = table_at + origin[tile] + block * stride[tile], row + tile * TILE_BYTES
                self.check_reachable(region, 2 * TILE_VALUES)
                if direction is Direction.STORE:
                    values = _copy_of(region, 2 * TILE_VALUES).view(np.uint16)
                    result, fits = pack_tiles(values[None])
                    _memmove(packed, int(result.ctypes.data), TILE_BYTES)
                    if not fits[0]:
                        flag_at = flags_at + 4 * (rows.first + pair)
                        self.check_reachable(flag_at, 4)
                        ctypes.c_int32.from_address(flag_at).value = 1
                else:
                    back = unpack_tiles(_copy_of(packed, TILE_BYTES)[None])
                    _memmove(region, int(back.ctypes.data), 2 * TILE_VALUES)

    def check_inside(self, address: int, nbytes: int) -> None:
        """A copy by DMA must not reach over two registrations."""
        if self._reachable_bytes(address) < nbytes:
            raise AssertionError(f"{nbytes} bytes at {address:#x} are not inside one allocation or registration")

    def check_reachable(self, address: int, nbytes: int) -> None:
        """A kernel sees addresses; where a registration ends is all the same to it."""
        while nbytes > 0:
            reach = self._reachable_bytes(address)
            if not reach:
                raise AssertionError(f"{nbytes} bytes at {address:#x} are nobody's")
            address, nbytes = address + reach, nbytes - reach

    def _reachable_bytes(self, address: int) -> int:
        for memory in (self._memory, self.pinned):
            for begin, size in memory.items():
                if begin <= address < begin + size:
                    return begin + size - address
        return 0


class Rows(NamedTuple):
    """What a launch of the kernel is told."""

    index_at: int
    first: int
    pairs: int
    rows_at: int
    row_bytes: int
    scattered: bool


def twin(tiling: Tiling, table_at: int, rows: Rows) -> Iterator[tuple[int, int, int]]:
    """Yield the copies that the kernel makes: address in a row, address in a region, bytes."""
    width = tiling.element_bytes
    origin, stride, offset, length = _array_at(table_at, 4 * tiling.tiles).reshape(4, -1).tolist()
    index = _array_at(rows.index_at + 16 * rows.first, 2 * rows.pairs).reshape(-1, 2).tolist()
    for pair, (block, slot) in enumerate(index):
        row = (rows.rows_at + (slot if rows.scattered else pair) * rows.row_bytes) // width
        for tile in range(tiling.tiles):
            assert length[tile] <= tiling.lanes
            region = table_at // width + origin[tile] + block * stride[tile]
            in_row = row + offset[tile]
            assert not any(number % tiling.align for number in (region, in_row, length[tile]))
            yield in_row * width, region * width, length[tile] * width


def _array_at(address: int, count: int) -> npt.NDArray[np.int64]:
    return np.array((ctypes.c_int64 * count).from_address(address), np.int64)


def _copy_of(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    return np.array((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)


def _memmove(to: int, source: int, nbytes: int) -> None:
    ctypes.memmove(to, source, nbytes)
