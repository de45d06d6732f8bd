from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

from kvtide.copy import DeviceCache, Direction, Finished, HostArena, Region, ThreadedCopyEngine, regions_of
from kvtide.copy.move import BlockMover
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError
from tests.contracts.copy_contract import PATIENCE_S, MovingContract, Rig, Shape
from tests.contracts.copy_rigs import ArrayRig


class NumpyRig(ArrayRig):
    """Device memory is one numpy array per region, or one for all where the regions are alike."""

    def __init__(self, shape: Shape, *, threads: int, joined: bool, max_transfers: int) -> None:
        strides = [fragment + shape.padding for fragment in shape.fragments]
        rng = np.random.default_rng(0)
        if joined and len(set(strides)) == 1:
            whole = rng.integers(0, 256, (len(strides), shape.blocks, strides[0]), np.uint8)
            self.arrays = list(whole)
            self.regions = [
                Region(whole, strides[0], fragment, i * whole[0].nbytes) for i, fragment in enumerate(shape.fragments)
            ]
        else:
            self.arrays = [rng.integers(0, 256, (shape.blocks, stride), np.uint8) for stride in strides]
            self.regions = [
                Region(array, stride, fragment)
                for array, stride, fragment in zip(self.arrays, strides, shape.fragments, strict=True)
            ]
        arena = HostArena(shape.slots, shape.block_bytes)
        cache = DeviceCache(self.regions, blocks=shape.blocks)
        engine = ThreadedCopyEngine(cache, arena, threads=threads, max_transfers=max_transfers)
        super().__init__(engine, shape, arena)


class ThreadsContract(MovingContract):
    threads = 1
    joined = False

    def build(self, shape: Shape, *, max_transfers: int) -> NumpyRig:
        return NumpyRig(shape, threads=self.threads, joined=self.joined, max_transfers=max_transfers)

    def release(self, rig: Rig) -> None:
        assert isinstance(rig, NumpyRig)
        rig.arena.close()


class TestOneThread(ThreadsContract):
    pass


class TestTwoThreadsAndJoinedRegions(ThreadsContract):
    threads = 2
    joined = True


def _engine(
    blocks: int = 4, slots: int = 4, fragment: int = 64, *, threads: int = 1, max_transfers: int = 1024
) -> ThreadedCopyEngine:
    cache = DeviceCache(regions_of(np.zeros((2, blocks, fragment), np.uint8), block_axis=1), blocks=blocks)
    return ThreadedCopyEngine(cache, HostArena(slots, 2 * fragment), threads=threads, max_transfers=max_transfers)


class Unprintable(BaseException):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(3), KeyboardInterrupt(), Unprintable()])
def test_f15_the_thread_outlives_whatever_the_move_raises(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    engine = _engine()

    def broken(self: BlockMover, direction: Direction, copy: Copy) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(BlockMover, "move", broken)
        engine.submit(Direction.STORE, Copy(1, (0,), (0,)))
        assert engine.wait([1], PATIENCE_S)
    done, failed, _ = engine.poll()
    assert not done
    assert failed[0][0] == 1
    assert type(error).__name__ in failed[0][1]
    engine.submit(Direction.STORE, Copy(2, (0,), (0,)))
    assert engine.wait([2], PATIENCE_S)
    assert engine.poll() == Finished(done=(2,))
    assert engine.close()


def test_loads_overtake_stores_that_have_not_begun() -> None:
    engine = _engine()
    order: list[int] = []
    reached, gate = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        gate.wait(PATIENCE_S)

    engine.submit(Direction.STORE, Copy(0, (0,), (0,)), hold)
    assert reached.wait(PATIENCE_S)
    engine.submit(Direction.STORE, Copy(1, (1,), (1,)), lambda: order.append(1))
    engine.submit(Direction.LOAD, Copy(2, (2,), (2,)), lambda: order.append(2))
    gate.set()
    assert engine.wait([0, 1, 2], PATIENCE_S)
    assert order == [2, 1]
    assert engine.close()


def test_two_threads_copy_at_the_same_time() -> None:
    engine = _engine(threads=2)
    together = threading.Barrier(2)
    for id_ in range(2):
        engine.submit(Direction.STORE, Copy(id_, (id_,), (id_,)), lambda: together.wait(PATIENCE_S))
    assert engine.wait([0, 1], PATIENCE_S)
    assert sorted(engine.poll().done) == [0, 1]
    assert engine.close()


@pytest.mark.parametrize(
    ("regions", "blocks", "fragment"), [(256, 400, 256), (16, 400, 4096), (1, 400, 65_536), (1, 32, 1 << 20)]
)
@pytest.mark.parametrize("scattered", [True, False])
def test_other_threads_run_python_while_bytes_are_copied(
    regions: int, blocks: int, fragment: int, scattered: bool
) -> None:
    """The interpreter is told never to take the GIL away, so another thread only runs if the copy lets go of it.

    There are fewer than 500 blocks, because numpy lets go of it for longer lists of ids, too.
    """
    cache = DeviceCache(regions_of(np.zeros((regions, blocks, fragment), np.uint8), block_axis=1), blocks=blocks)
    mover = BlockMover(cache, HostArena(blocks, cache.block_bytes))
    order = np.random.default_rng(0).permutation(blocks) if scattered else np.arange(blocks)
    copy = Copy(1, tuple(range(blocks)), tuple(order.tolist()))
    turns, stop = 0, False

    def count() -> None:
        nonlocal turns
        while not stop:
            turns += 1
            time.sleep(0)  # gives the GIL back and asks for it again

    other = threading.Thread(target=count)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        other.start()
        before, end_s = turns, time.monotonic() + PATIENCE_S
        while turns == before and time.monotonic() < end_s:
            mover.move(Direction.STORE, copy)
        moved_meanwhile = turns > before
    finally:
        stop = True
        other.join()
        sys.setswitchinterval(interval_s)
    assert moved_meanwhile


def test_closing_lets_go_of_the_arena() -> None:
    cache = DeviceCache(regions_of(np.zeros((4, 64), np.uint8), block_axis=0), blocks=4)
    arena = HostArena(4, 64)
    engine = ThreadedCopyEngine(cache, arena)
    memory = weakref.ref(arena.memory)
    assert engine.close()
    arena.close()
    gc.collect()
    assert memory() is None


def test_a_program_that_forgets_to_close_the_engine_still_ends() -> None:
    program = """
        import numpy as np
        from kvtide.copy import DeviceCache, HostArena, ThreadedCopyEngine, regions_of
        cache = DeviceCache(regions_of(np.zeros((4, 64), np.uint8), block_axis=0), blocks=4)
        engine = ThreadedCopyEngine(cache, HostArena(4, 64), threads=2)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0  # noqa: S603


@pytest.mark.parametrize("option", ["threads", "max_transfers"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_counts_that_make_no_sense_are_refused(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=option):
        _engine(**{option: value})


def test_a_slot_of_another_size_than_a_block_is_refused() -> None:
    cache = DeviceCache(regions_of(np.zeros((4, 64), np.uint8), block_axis=0), blocks=4)
    with pytest.raises(ConfigError, match="slot_bytes=63"):
        ThreadedCopyEngine(cache, HostArena(4, 63))


def test_threads_that_the_system_does_not_give_are_a_config_error_and_none_stays_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(threading.enumerate())
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "kvtide-copy-1":
            raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(ConfigError, match="threads=2"):
        _engine(threads=2)
    assert set(threading.enumerate()) <= before
