"""A copy engine whose host memory comes and goes keeps lives apart, and holds nobody up."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from kvtide.copy import (
    CopyEngine,
    DeviceCache,
    Direction,
    Finished,
    HostArena,
    LivesCopyEngine,
    Region,
    ThreadedCopyEngine,
    Traffic,
    shared_memory,
)
from kvtide.copy import lives as lives_module
from kvtide.copy.packing.codec import Reference
from kvtide.copy.shared_arena import SharedArena, front_bytes
from kvtide.core.messages import Copy, Plan, Pool, Report
from kvtide.errors import CopyError
from kvtide.latency import Latencies
from kvtide.worker import Worker
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE, MovingContract, Rig, Shape
from tests.contracts.copy_rigs import ArrayRig
from tests.copy.packing.cases import ordinary

BLOCK_BYTES = 16


class Memory:
    """Host memory that is there when a test says so; notes what is said to it."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self.is_there = True
        self.gone = False
        self.looked_at = 0
        self.said: list[str] = []
        self.arenas: dict[int, HostArena] = {}
        self.views: dict[int, npt.NDArray[np.uint8]] = {}
        """Keep the bytes where tests can see them, also of a life that is over."""

    def join(self, pool: Pool) -> HostArena | None:
        if not self.is_there:
            return None
        self.said.append(f"join {pool.life}")
        arena = self.arenas[pool.life] = HostArena(self.slots, self.slot_bytes)
        self.views[pool.life] = arena.memory
        return arena

    def is_gone(self) -> bool:
        self.looked_at += 1
        return self.gone

    def drained(self) -> None:
        self.said.append("drained")

    def close(self) -> None:
        self.said.append("close")


class MemoryWithRows(Memory):
    """Memory that others may have, too, with a row for a block that does not pack."""

    def join(self, pool: Pool) -> HostArena | None:
        row_bytes = self.slot_bytes // 1552 * 2048
        nbytes = front_bytes(self.slots, row_bytes) + self.slots * self.slot_bytes
        offer = shared_memory.make(nbytes)
        self.arenas[pool.life] = SharedArena(self.slots, self.slot_bytes, row_bytes=row_bytes, file=offer.descriptor)
        os.close(offer.descriptor)
        return self.arenas[pool.life]


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it does not happen"
        time.sleep(0.001)


def begin(engine: CopyEngine, life: int) -> None:
    """Begin a life, and wait until it has memory."""
    engine.use(Pool(life, "epoch", life))

    def has_begun() -> bool:
        assert engine.poll() == Finished()
        return engine.life == life and engine.slots_ready() != 0

    until(has_begun)


class LivesRig(ArrayRig):
    memory: Memory

    def read_slot(self, slot: int) -> bytes:
        content: bytes = self.memory.views[0][slot].tobytes()
        return content

    def write_slot(self, slot: int, content: bytes) -> None:
        self.memory.views[0][slot] = np.frombuffer(content, np.uint8)


class TestLivesCopyEngine(MovingContract):
    """What every copy engine keeps, it keeps within a life."""

    def build(self, shape: Shape, *, max_transfers: int) -> Rig:
        strides = [fragment + shape.padding for fragment in shape.fragments]
        arrays = [np.random.default_rng(0).integers(0, 256, (shape.blocks, stride), np.uint8) for stride in strides]
        regions = [Region(*each) for each in zip(arrays, strides, shape.fragments, strict=True)]
        cache = DeviceCache(regions, blocks=shape.blocks)
        memory = Memory(shape.slots, shape.block_bytes)
        engine = LivesCopyEngine(
            memory, lambda arena: ThreadedCopyEngine(cache, arena, max_transfers=max_transfers), print
        )
        begin(engine, 0)
        rig = LivesRig(engine, shape, memory.arenas[0])
        rig.arrays, rig.memory = arrays, memory
        return rig


class Lives:
    """An engine, its memory, and what it has said."""

    def __init__(self) -> None:
        self.blocks = np.arange(4 * BLOCK_BYTES, dtype=np.uint8).reshape(4, BLOCK_BYTES)
        self.memory = Memory(3, BLOCK_BYTES)
        self.lines: list[str] = []
        self.may_make = threading.Event()
        self.may_make.set()
        self.broken = False
        self.made: list[CopyEngine] = []
        self.engine = LivesCopyEngine(self.memory, self.make, self.lines.append)

    def make(self, arena: HostArena) -> CopyEngine:
        assert self.may_make.wait(PATIENCE_S)
        if self.broken:
            raise CopyError("the driver is gone")
        cache = DeviceCache([Region(self.blocks, BLOCK_BYTES, BLOCK_BYTES)], blocks=len(self.blocks))
        self.made.append(ThreadedCopyEngine(cache, arena))
        return self.made[-1]

    def run(self, direction: Direction, copy: Copy) -> Finished:
        assert self.engine.submit(direction, copy)
        assert self.engine.wait((copy.id,), PATIENCE_S)
        return self.engine.poll()

    def polled(self, condition: Callable[[], object]) -> None:
        """Poll until something has happened; nothing is reported meanwhile."""
        until(lambda: self.engine.poll() == Finished() and condition())


@pytest.fixture
def lives() -> Iterator[Lives]:
    lives = Lives()
    yield lives
    lives.may_make.set()
    assert lives.engine.close(PATIENCE_S)


def test_what_lives_have_moved_adds_up_in_all_that_is_counted() -> None:
    one, other = Traffic(1, 20, Latencies().plus(0.5), 300, 4000), Traffic(2, 30, Latencies().plus(1.0), 400, 5000)
    total = one.plus(other)
    assert (total.transfers, total.bytes, total.busy_s, total.saved_bytes, total.unpacked_blocks) == (
        3,
        50,
        1.5,
        700,
        9000,
    )


def test_without_a_life_there_are_no_slots_and_copies_fail(lives: Lives) -> None:
    assert (lives.engine.life, lives.engine.slots_ready(), lives.engine.lost) == (0, 0, None)
    assert lives.run(STORE, Copy(1, (0,), (0,), life=1)).failed == ((1, "this rank has no memory of life 1"),)
    assert lives.engine.poll() == Finished()
    assert lives.engine.certain() == {}


def test_a_life_has_its_slots_as_soon_as_its_memory_is_there(lives: Lives) -> None:
    lives.memory.is_there = False
    lives.engine.use(Pool(1, "epoch", 1))
    lives.engine.poll()
    assert (lives.engine.life, lives.engine.slots_ready()) == (0, 0)
    lives.memory.is_there = True
    begin(lives.engine, 1)
    assert (lives.engine.life, lives.engine.slots_ready()) == (1, 3)
    assert lives.run(STORE, Copy(1, (2,), (1,), life=1)) == Finished(done=(1,))
    assert lives.memory.views[1][1].tolist() == lives.blocks[2].tolist()


def test_nobody_waits_while_an_engine_is_made(lives: Lives) -> None:
    lives.may_make.clear()
    lives.engine.use(Pool(1, "epoch", 1))
    for _ in range(3):
        assert lives.engine.poll() == Finished()
    assert (lives.engine.life, lives.engine.slots_ready()) == (0, 0)
    assert not lives.engine.close(0.0), "it is being made"
    lives.may_make.set()
    assert lives.engine.close(PATIENCE_S)


@pytest.mark.parametrize("other", [1, 3])
def test_a_copy_of_another_life_fails_and_moves_nothing(lives: Lives, other: int) -> None:
    begin(lives.engine, 1)
    begin(lives.engine, 2)
    before = lives.blocks.copy()
    for id_, direction in enumerate((STORE, LOAD)):
        failed = lives.run(direction, Copy(id_, (0,), (0,), life=other)).failed
        assert failed == ((id_, f"this rank has no memory of life {other}"),)
    assert (lives.blocks == before).all()
    assert not lives.memory.views[1].any()
    assert not lives.memory.views[2].any()


def store_at_a_gate(lives: Lives) -> threading.Event:
    """Let a store be under way until the event is set."""
    gate, reached = threading.Event(), threading.Event()

    def fence() -> None:
        reached.set()
        assert gate.wait(PATIENCE_S)

    assert lives.engine.submit(STORE, Copy(1, (3,), (0,), life=1), fence)
    assert reached.wait(PATIENCE_S)
    return gate


def test_what_is_under_way_ends_well_in_a_life_that_is_over_and_only_then_the_next_begins(lives: Lives) -> None:
    begin(lives.engine, 1)
    gate = store_at_a_gate(lives)
    lives.engine.use(Pool(2, "epoch", 2))
    for _ in range(3):
        assert lives.engine.poll() == Finished()
    assert lives.memory.said == ["join 1"], "a copy of the first life is under way"
    assert (lives.engine.life, lives.engine.slots_ready()) == (0, 0), "it takes no more"
    assert lives.engine.submit(STORE, Copy(1, (3,), (0,), life=1)), "the plan came twice"
    gate.set()
    assert lives.engine.wait((1,), PATIENCE_S)
    assert lives.engine.poll() == Finished(done=(1,))
    assert lives.memory.views[1][0].tolist() == lives.blocks[3].tolist()
    lives.polled(lambda: lives.engine.life == 2)
    assert lives.memory.said == ["join 1", "drained", "join 2"]
    with pytest.raises(CopyError, match="closed"):
        _ = lives.memory.arenas[1].memory


def test_without_a_node_the_memory_goes_too(lives: Lives) -> None:
    begin(lives.engine, 1)
    lives.engine.use(None)
    lives.polled(lambda: lives.memory.said == ["join 1", "drained"])
    lives.engine.use(None)
    assert lives.engine.poll() == Finished()


def test_f28_an_engine_that_rests_does_not_keep_the_memory_of_a_dead_node(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives_module, "IDLE_S", 0.01)
    begin(lives.engine, 1)
    until(lambda: lives.memory.looked_at >= 3)
    assert lives.memory.said == ["join 1"], "the node lives"
    lives.memory.gone = True
    until(lambda: lives.memory.said == ["join 1", "drained"])
    with pytest.raises(CopyError, match="closed"):
        _ = lives.memory.arenas[1].memory
    assert lives.run(STORE, Copy(1, (0,), (0,), life=1)).failed
    lives.memory.gone = False
    begin(lives.engine, 2)
    assert lives.run(STORE, Copy(2, (0,), (0,), life=2)).done == (2,)


def test_f28_what_a_dead_node_left_under_way_ends_well_before_its_memory_goes(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives_module, "IDLE_S", 0.01)
    begin(lives.engine, 1)
    gate = store_at_a_gate(lives)
    lives.memory.gone = True
    until(lambda: lives.engine.life == 0)
    assert lives.memory.said == ["join 1"]
    gate.set()
    assert lives.engine.wait((1,), PATIENCE_S)
    assert lives.engine.poll() == Finished(done=(1,))
    assert lives.memory.views[1][0].tolist() == lives.blocks[3].tolist()
    until(lambda: lives.memory.said == ["join 1", "drained"])


def test_a_life_that_ends_while_its_engine_is_made_is_drained(lives: Lives) -> None:
    lives.may_make.clear()
    lives.engine.use(Pool(1, "epoch", 1))
    lives.engine.use(Pool(2, "epoch", 2))
    lives.engine.use(Pool(3, "epoch", 3))
    lives.may_make.set()
    lives.polled(lambda: lives.engine.life == 3)
    assert lives.memory.said == ["join 1", "drained", "join 3"]


def test_what_was_moved_in_earlier_lives_still_counts(lives: Lives) -> None:
    for life in (1, 2):
        begin(lives.engine, life)
        assert lives.run(STORE, Copy(life, (0, 1), (0, 1), life=life)).done
    traffic = lives.engine.traffic(STORE)
    assert (traffic.transfers, traffic.bytes, traffic.seconds.count) == (2, 4 * BLOCK_BYTES, 2)
    assert lives.engine.traffic(LOAD).transfers == 0
    lives.engine.use(None)
    lives.polled(lambda: lives.memory.said[-1] == "drained")
    assert lives.engine.traffic(STORE) == traffic


def test_an_engine_that_cannot_be_made_is_said_and_costs_that_life_only(lives: Lives) -> None:
    lives.broken = True
    lives.engine.use(Pool(1, "epoch", 1))
    lives.polled(lambda: lives.lines)
    assert lives.lines == [
        "nothing is copied to or from the node's memory: kvtide.errors.CopyError: the driver is gone"
    ]
    for _ in range(3):
        lives.engine.poll()
    assert (lives.engine.slots_ready(), lives.memory.said) == (0, ["join 1"])
    lives.broken = False
    begin(lives.engine, 2)
    assert lives.memory.said == ["join 1", "drained", "join 2"]


def test_memory_that_does_not_go_is_said_once_and_no_other_is_joined(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(lives.engine, 1)
    monkeypatch.setattr(lives.made[0], "close", lambda timeout_s=0.0: False)  # its copies do not end
    lives.engine.use(Pool(2, "epoch", 2))
    lives.polled(lambda: lives.lines)
    for _ in range(5):
        lives.engine.poll()
    (line,) = lives.lines
    assert line.startswith("the memory of an earlier life of the node stays mapped, and no other is used")
    assert lives.memory.said == ["join 1"]
    monkeypatch.undo()  # now they do


def test_engines_hear_what_is_said_to_all_of_them(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    monkeypatch.setattr(ThreadedCopyEngine, "share", lambda _, compute: heard.append(compute))
    monkeypatch.setattr(ThreadedCopyEngine, "device_memory_goes", lambda _: heard.append("goes"))
    monkeypatch.setattr(ThreadedCopyEngine, "lost", "the device is lost")
    lives.engine.share(compute=True)
    lives.engine.device_memory_goes()
    begin(lives.engine, 1)
    lives.engine.device_memory_goes()
    lives.engine.share(compute=False)
    assert heard == [True, "goes", False]
    assert lives.engine.lost == "the device is lost"


def test_a_worker_says_of_each_life_how_many_slots_it_has(lives: Lives) -> None:
    worker = Worker(4, lives.engine)
    assert worker.poll() == Report(4, slots_ready=0)
    reports: list[Report] = []

    def has_memory() -> bool:
        reports.append(worker.poll())
        return bool(reports[-1].life)

    for life in (1, 2):
        worker.use(Pool(life, "epoch", life))
        until(has_memory)
        assert reports[-1] == Report(4, slots_ready=3, life=life)
    worker.start(Plan(1, stores=(Copy(1, (0,), (0,), life=1), Copy(2, (0,), (0,), life=2)), wait_for=(1, 2)))
    report = worker.poll()
    assert (report.done, report.failed) == ((2,), ((1, "this rank has no memory of life 1"),))


def test_packed_blocks_come_back_and_others_are_named_and_all_lives_are_counted() -> None:
    tiles, packed_bytes = 2, 2 * 1552
    blocks = np.random.default_rng(0).integers(0, 256, (4, tiles * 2048), np.uint8)
    for block in (0, 2):
        blocks[block] = ordinary(tiles, block).view(np.uint8).reshape(-1)
    stored = blocks.copy()
    cache = DeviceCache([Region(blocks, tiles * 2048, tiles * 2048)], blocks=4)

    def make(arena: HostArena) -> CopyEngine:
        assert isinstance(arena, SharedArena)
        return ThreadedCopyEngine(cache, arena, unpacked=arena.unpacked, codec=Reference)

    engine = LivesCopyEngine(MemoryWithRows(4, packed_bytes), make, print)
    for life in (1, 2):
        begin(engine, life)
        assert engine.submit(STORE, Copy(10 * life, (0, 1, 2, 3), (2, 1, 0, 3), life=life))
        assert engine.wait([10 * life], PATIENCE_S)
        assert engine.poll() == Finished(done=(10 * life,), not_kept=((10 * life, (3,)),)), "there is one row"
        blocks[:] = 0
        assert engine.submit(LOAD, Copy(10 * life + 1, (0, 1, 2), (2, 1, 0), life=life))
        assert engine.wait([10 * life + 1], PATIENCE_S)
        assert engine.poll() == Finished(done=(10 * life + 1,))
        assert np.array_equal(blocks[:3], stored[:3])
        blocks[:] = stored
    traffic = engine.traffic(STORE)
    assert (traffic.unpacked_blocks, traffic.bytes) == (4, 4 * packed_bytes + 2 * tiles * 2048)
    assert traffic.saved_bytes == 4 * (tiles * 2048 - packed_bytes)
    assert engine.close(PATIENCE_S)
