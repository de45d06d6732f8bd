"""Memory that several processes map, with rows for the blocks that do not pack."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import numpy.typing as npt
import pytest

from kvtide.copy import DeviceCache, Direction, Region, ThreadedCopyEngine, shared_memory
from kvtide.copy.packing import whole_tiles_bytes
from kvtide.copy.packing.codec import Reference
from kvtide.copy.row_table import table_bytes
from kvtide.copy.shared_arena import SharedArena, front_bytes
from kvtide.copy.slot_places import SlotPlaces
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError
from tests.copy.packing.cases import ordinary
from tests.left_behind import Before

PATIENCE_S = 20
BLOCK_BYTES = 2048
SLOT_BYTES = whole_tiles_bytes([BLOCK_BYTES])
SLOTS = 400
BLOCKS = 12
HUGE = 2 << 20


def made(slots: int = SLOTS, slot_bytes: int = SLOT_BYTES, row_bytes: int = BLOCK_BYTES) -> int:
    return shared_memory.make(front_bytes(slots, row_bytes) + slots * slot_bytes).descriptor


@pytest.fixture
def file() -> Iterator[int]:
    before, descriptor = Before(), made()
    yield descriptor
    os.close(descriptor)
    before.check()


def mapped(file: int) -> SharedArena:
    return SharedArena(SLOTS, SLOT_BYTES, row_bytes=BLOCK_BYTES, file=file)


def test_without_packing_there_is_nothing_in_front_of_the_slots() -> None:
    descriptor = made(3, 5, 0)
    with closing(SharedArena(3, 5, file=descriptor)) as host:
        assert (host.unpacked, front_bytes(3, 0)) == (None, 0)
        assert host.pieces == [(host.address, 15)]
        host.memory[:] = 7
    assert os.pread(descriptor, 15, 0) == bytes([7] * 15)
    os.close(descriptor)


@pytest.mark.parametrize(("slots", "row_bytes"), [(1, 1), (400, 2048), (100_000, 2048), (99, HUGE), (1_048_576, 4096)])
def test_slots_begin_where_a_huge_page_does_behind_one_row_for_a_hundred_and_the_table(
    slots: int, row_bytes: int
) -> None:
    rows = max(1, slots // 100)
    front = front_bytes(slots, row_bytes)
    assert front % HUGE == 0
    assert 0 <= front - rows * row_bytes - table_bytes(slots, rows) < HUGE


def test_rows_the_table_and_slots_are_apart(file: int) -> None:
    with closing(mapped(file)) as host, closing(mapped(file)) as other:
        assert host.unpacked is not None
        assert other.unpacked is not None
        host.memory[:] = 1
        host.unpacked.arena.memory[:] = 2
        host.unpacked.place(np.arange(SLOTS))
        assert (other.memory == 1).all()
        assert (other.unpacked.arena.memory == 2).all()
        assert other.unpacked.used == SLOTS // 100
        assert other.pieces[0][1] + other.pieces[1][1] == os.fstat(file).st_size


def test_where_memory_cannot_be_opened_again_that_is_said(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(2, "No such file or directory")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=r"memory that can be opened again, in /proc/self/fd .*No such file"):
        mapped(file)


class Engine:
    """Copies between blocks of its own and the shared slots, as an engine of a process of its own does."""

    def __init__(self, file: int) -> None:
        self.blocks: npt.NDArray[np.uint8] = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
        cache = DeviceCache([Region(self.blocks, BLOCK_BYTES, BLOCK_BYTES)], blocks=BLOCKS)
        self.arena = mapped(file)
        self.engine = ThreadedCopyEngine(cache, self.arena, unpacked=self.arena.unpacked, codec=Reference)
        self._copies = 0

    def copy(self, direction: Direction, blocks: list[int], slots: list[int]) -> tuple[int, ...]:
        """Return slots of which nothing was kept."""
        self._copies += 1
        assert self.engine.submit(direction, Copy(self._copies, tuple(blocks), tuple(slots)))
        assert self.engine.wait([self._copies], PATIENCE_S)
        finished = self.engine.poll()
        assert finished.failed == ()
        return finished.not_kept[0][1] if finished.not_kept else ()

    def close(self) -> None:
        assert self.engine.close(PATIENCE_S)
        self.arena.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_one_engine_stores_another_one_loads_whether_it_packs_or_not(file: int, seed: int) -> None:
    rng = random.Random(seed)
    engines, held = [Engine(file) for _ in range(3)], dict[int, bytes]()
    for _ in range(60):
        writer, reader = rng.sample(engines, 2)
        slots = rng.sample(range(30), rng.randint(1, 6))
        blocks = rng.sample(range(BLOCKS), len(slots))
        for block in blocks:
            packs = rng.random() < 0.7
            content = ordinary(1, rng.randrange(1 << 16)).view(np.uint8).reshape(-1) if packs else rng.randbytes(2048)
            writer.blocks[block] = content if packs else np.frombuffer(content, np.uint8)
        lost = writer.copy(Direction.STORE, blocks, slots)
        held |= {slot: writer.blocks[block].tobytes() for slot, block in zip(slots, blocks, strict=True)}
        held = {slot: content for slot, content in held.items() if slot not in lost}
        if known := rng.sample(sorted(held), min(len(held), 6)):
            assert reader.copy(Direction.LOAD, list(range(len(known))), known) == ()
            assert [reader.blocks[at].tobytes() for at in range(len(known))] == [held[slot] for slot in known]
    for engine in engines:
        engine.close()


def test_what_an_engine_leaves_half_done_when_it_is_killed_is_a_free_row(file: int) -> None:
    with closing(mapped(file)) as host, closing(mapped(file)) as other:
        assert host.unpacked is not None
        assert other.unpacked is not None
        host.unpacked._table._slot_of[:] = np.arange(1, SLOTS // 100 + 1)  # it has taken rows, and not told the slots
        assert other.unpacked.used == 0
        assert other.unpacked.place(np.arange(5)) == [4]


def test_a_tier_of_a_node_finds_and_brings_back_blocks_that_do_not_pack(file: int) -> None:
    engine, node = Engine(file), mapped(file)
    assert node.unpacked is not None
    places = SlotPlaces(node, node.unpacked)
    content = random.Random(0).randbytes(BLOCK_BYTES)
    engine.blocks[0] = np.frombuffer(content, np.uint8)
    assert engine.copy(Direction.STORE, [0], [9]) == ()
    (held,) = places.held([9])
    (place,) = places.offered([5], 1)
    assert held is not None
    assert place is not None
    assert bytes(held) == content
    place[:] = content
    assert engine.copy(Direction.LOAD, [3], [5]) == ()
    assert engine.blocks[3].tobytes() == content
    del held, place
    engine.close()
    node.close()


def test_f29_what_an_engine_writes_over_the_table_costs_a_node_nothing_but_blocks(file: int) -> None:
    with closing(mapped(file)) as node, closing(mapped(file)) as engine:
        assert node.unpacked is not None
        assert engine.unpacked is not None
        places = SlotPlaces(node, node.unpacked)
        for garbage in (77_777, -77_777, 2**31 - 1, -(2**31)):
            engine.unpacked._table._row_of[:] = garbage
            engine.unpacked._table._slot_of[:] = garbage
            places.held([3, 9])
            places.offered([3, 9], 1)
            places.missed([3, 9])
        engine.unpacked._table._row_of[9] = 77_777
        assert places.held([3, 9]) == [None, None]


def test_engines_and_nodes_go_on_without_rows_where_files_cannot_be_locked(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: int, _how: int) -> None:
        raise OSError(37, "No locks available")

    with closing(mapped(file)) as host:
        assert host.unpacked is not None
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", refuse)
            assert host.unpacked.place(np.arange(2)) == [0, 1]
        assert host.unpacked.place(np.arange(2)) == []
        unpacked = host.unpacked
    assert unpacked.place(np.arange(3)) == [0, 1, 2], "it is closed"


def test_a_process_that_stands_still_with_the_lock_is_not_waited_for_each_time(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_s: list[float] = []
    with closing(mapped(file)) as host, closing(mapped(file)) as stopped:
        assert host.unpacked is not None
        assert stopped.unpacked is not None
        with stopped.unpacked._table._lock, monkeypatch.context() as patched:
            patched.setattr("kvtide.copy.row_table.time.sleep", slept_s.append)
            assert host.unpacked.place(np.arange(2)) == [0, 1]
            assert slept_s
            slept_s.clear()
            assert host.unpacked.place(np.arange(2)) == [0, 1]
            assert slept_s == []
        assert host.unpacked.place(np.arange(2)) == []
        with stopped.unpacked._table._lock, monkeypatch.context() as patched:
            patched.setattr("kvtide.copy.row_table.time.sleep", slept_s.append)
            assert host.unpacked.place(np.arange(2, 4)) == [2, 3]
            assert slept_s, "it has let go since, so it is waited for again"


OTHER = """
import random, sys
import numpy as np
from kvtide.copy.shared_arena import SharedArena
file, first, end, rounds = map(int, sys.argv[1:])
host = SharedArena(400, 1552, row_bytes=2048, file=file)
rng, mine = random.Random(first), {}
for number in range(rounds):
    slots = rng.sample(range(first, end), rng.randint(1, 2))
    for slot in [slot for slot in slots if slot in mine]:
        row, content = mine.pop(slot)
        assert host.unpacked.rows_of(np.array([slot])) == row, "somebody took it"
        assert host.unpacked.arena.memory[row].tobytes() == content, "somebody else has written to it"
    host.unpacked.forget(np.array(slots))
    without = host.unpacked.place(np.array(slots))
    for slot in slots[:len(slots) - len(without)]:
        row, content = int(host.unpacked.rows_of(np.array([slot]))[0]), rng.randbytes(2048)
        host.unpacked.arena.memory[row] = np.frombuffer(content, np.uint8)
        mine[slot] = row, content
    if number == 100:
        print("is at it", flush=True)
host.unpacked.forget(np.arange(first, end))
"""
"""An engine that gives rows to slots of its own, and looks whether they are still there when it wants them back."""


def test_processes_that_take_rows_at_the_same_time_never_have_the_same_one(file: int) -> None:
    """Without the lock it fails, most times."""

    def begun(first: int, end: int, rounds: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OTHER, *map(str, (file, first, end, rounds))]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=(file,))  # noqa: S603 (ours)

    killed = begun(0, 2, 1 << 30)  # of the four rows it keeps two at most
    others = [begun(first, first + 20, 3000) for first in (20, 40, 60)]
    with killed:
        assert killed.stdout is not None
        assert killed.stdout.readline()
        killed.kill()  # maybe with the lock, and in the middle of something
    for process in others:
        process.communicate(timeout=60)
        assert process.returncode == 0
