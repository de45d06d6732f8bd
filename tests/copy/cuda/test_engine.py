from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvtide.copy import Direction, Finished, HostArena
from kvtide.copy.cuda import CudaCache, CudaCopyEngine, CudaRegion, Route
from kvtide.copy.cuda.gpu import Stream
from kvtide.copy.cuda.lane import Lane
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE, MovingContract, Rig, Shape
from tests.contracts.copy_rigs import ArrayRig
from tests.copy.cuda.fake_gpu import FakeEvent, FakeGpu


class FakeRig(ArrayRig):
    """An engine on a GPU that runs its streams in an order of the seed's choice."""

    engine: CudaCopyEngine

    def __init__(self, shape: Shape, *, seed: int = 0, max_transfers: int = 64, **options: Any) -> None:
        self.gpu = FakeGpu(seed)
        rng = np.random.default_rng(seed)
        self.arrays = [rng.integers(0, 256, (shape.blocks, f + shape.padding), np.uint8) for f in shape.fragments]
        regions = [
            CudaRegion(self.gpu.adopt(array), array.shape[1], fragment)
            for array, fragment in zip(self.arrays, shape.fragments, strict=True)
        ]
        arena = HostArena(shape.slots, shape.block_bytes)
        staged: dict[str, Any] = {
            "route": Route.STAGED,
            "staging_bytes": 3 * shape.block_bytes,
            "piece_bytes": 2 << 20,
        }
        engine = CudaCopyEngine(
            CudaCache(regions, blocks=shape.blocks),
            arena,
            gpu=self.gpu,
            max_transfers=max_transfers,
            **(staged | options),
        )
        super().__init__(engine, shape, arena)
        assert engine.pinning.wait(PATIENCE_S)
        self.compute = self.gpu.stream()

    def spin(self) -> None:
        """Keep compute busy for a while."""
        for _ in range(20):
            self.gpu.run_on(self.compute, lambda: None)


class FakeContract(MovingContract):
    route = Route.STAGED

    def build(self, shape: Shape, *, max_transfers: int) -> FakeRig:
        return FakeRig(shape, max_transfers=max_transfers, route=self.route)

    def release(self, rig: Rig) -> None:
        assert isinstance(rig, FakeRig)
        assert not rig.gpu.pinned
        rig.arena.close()


class TestStaged(FakeContract):
    pass


class TestDirect(FakeContract):
    route = Route.DIRECT


MIXED = Shape(blocks=64, slots=64, fragments=(40_000, 1_536), padding=16)
"""Three blocks to a buffer. Four slots in a row are long enough for a DMA, scattered ones are not."""


def _copies(rng: random.Random, shape: Shape, count: int) -> list[tuple[Direction, Copy]]:
    """Return transfers that share neither blocks nor slots, so that all of them may run at a time."""
    blocks, slots = rng.sample(range(shape.blocks), shape.blocks), list(range(shape.slots))
    copies = []
    for id_ in range(count):
        pairs = rng.randint(1, 8)
        scattered = rng.random() < 0.5
        chosen = rng.sample(slots, pairs) if scattered else slots[:pairs]
        slots = [slot for slot in slots if slot not in chosen]
        copies.append((rng.choice((STORE, LOAD)), Copy(id_, tuple(blocks[:pairs]), tuple(chosen))))
        del blocks[:pairs]
    return copies


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("seed", range(25))
def test_transfers_at_the_same_time_all_arrive(seed: int, route: Route, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr("kvtide.copy.cuda.lane._PAIRS_AT_ONCE", 3)
    rig = FakeRig(MIXED, seed=seed, route=route)
    for slot in range(MIXED.slots):
        rig.write_slot(slot, rng.randbytes(MIXED.block_bytes))
    blocks, slots = rig_content(rig)
    copies = _copies(rng, MIXED, 7)
    for direction, copy in copies:
        assert rig.engine.submit(direction, copy)
        for block, slot in zip(copy.blocks, copy.slots, strict=True):
            if direction is STORE:
                slots[slot] = blocks[block]
            else:
                blocks[block] = slots[slot]
    assert rig.finish(*range(7)).failed == ()
    assert rig_content(rig) == (blocks, slots)
    assert rig.engine.close(PATIENCE_S)


def rig_content(rig: Rig) -> tuple[list[bytes], list[bytes]]:
    return (
        [rig.read_block(block) for block in range(rig.shape.blocks)],
        [rig.read_slot(slot) for slot in range(rig.shape.slots)],
    )


def test_each_lane_has_the_gpu_proved_before_its_kernels_and_goes_on_if_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[tuple[str, str]] = []

    def note(method: str, *_: object) -> None:
        order.append((threading.current_thread().name, method))
        raise RuntimeError("does not work")

    def enter(lane: Lane) -> None:
        lane._gpu.enter(lane._kernels)
        note("enter")

    monkeypatch.setattr(FakeGpu, "prove", partial(note, "prove"))
    monkeypatch.setattr(Lane, "enter", enter)
    rig = FakeRig(Shape())
    for way in (STORE, LOAD):
        assert rig.run(way, Copy(1, (0,), (0,))).done == (1,)
    assert rig.engine.close(PATIENCE_S)
    for way in Direction:
        assert [method for name, method in order if name == f"kvtide-{way.value}"] == ["prove", "enter"]


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("shared", [True, False])
def test_buffers_are_reused_hundreds_of_times_without_a_mix_up(route: Route, shared: bool) -> None:
    shape = Shape(blocks=300, slots=300, fragments=(48, 64))
    rig = FakeRig(shape, route=route, staging_bytes=shape.block_bytes)
    rig.engine.share(compute=shared)
    order = random.Random(0).sample(range(300), 300)
    content = [rig.read_block(block) for block in order]
    assert rig.run(STORE, Copy(1, tuple(order), tuple(range(300)))).done == (1,)
    assert [rig.read_slot(slot) for slot in range(300)] == content
    assert rig.run(LOAD, Copy(2, tuple(range(300)), tuple(range(300)))).done == (2,)
    assert [rig.read_block(block) for block in range(300)] == content
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("direction", Direction)
def test_what_was_in_gpu_memory_may_be_gone_after_the_engine_was_told(route: Route, direction: Direction) -> None:
    rig = FakeRig(MIXED, route=route)
    copy = Copy(1, (3, 5), (0, 6))
    for slot in copy.slots:
        rig.write_slot(slot, random.Random(slot).randbytes(MIXED.block_bytes))
    assert rig.run(direction, Copy(0, (0,), (1,))).done == (0,)
    rig.engine.device_memory_goes()
    for memory in rig.gpu.allocated:
        memory[:] = 0xEE
    assert rig.run(direction, copy).done == (1,)
    for block, slot in zip(copy.blocks, copy.slots, strict=True):
        assert rig.read_block(block) == rig.read_slot(slot)
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize(("compute", "calls"), [(True, 1), (False, 2)])
@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("direction", Direction)
def test_f31_a_transfer_of_many_chunks_is_issued_in_one_call(
    route: Route, direction: Direction, *, compute: bool, calls: int
) -> None:
    """Its thread runs Python, for which it takes the GIL from an engine that launches kernels, once for all of it.

    Where nobody launches anything, the first chunk is issued before the rest is written down.
    """
    shape = Shape(blocks=300, slots=300, fragments=(48, 64))
    rig = FakeRig(shape, route=route, staging_bytes=shape.block_bytes)
    rig.engine.share(compute=compute)
    before = rig.gpu.calls["run"]
    assert rig.run(direction, Copy(1, tuple(range(300)), tuple(range(300)))).done == (1,)
    assert rig.gpu.calls["run"] == before + calls
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize("direction", Direction)
def test_what_was_lost_from_gpu_memory_is_fetched_again_though_the_first_fetch_failed(direction: Direction) -> None:
    rig = FakeRig(MIXED)
    assert rig.run(direction, Copy(0, (0,), (1,))).done == (0,)
    rig.engine.device_memory_goes()
    for memory in rig.gpu.allocated:
        memory[:] = 0xEE
    rig.gpu.failing["fetch"] = RuntimeError("out of luck")
    assert rig.run(direction, Copy(1, (3,), (0,))).failed == ((1, "RuntimeError: out of luck"),)
    assert rig.run(direction, Copy(2, (3,), (0,))).done == (2,)
    assert rig.read_block(3) == rig.read_slot(0)
    assert rig.engine.close(PATIENCE_S)


def test_scattered_short_slots_go_by_a_kernel_on_pinned_memory_and_runs_by_dma() -> None:
    rig = FakeRig(MIXED)
    copies, moves = rig.gpu.calls["copy"], rig.gpu.calls["move"]
    rig.run(STORE, Copy(1, (0, 1, 2), (3, 4, 5)))
    assert (rig.gpu.calls["copy"] - copies, rig.gpu.calls["move"] - moves) == (1, 1)
    rig.run(STORE, Copy(2, (0, 1, 2), (3, 9, 14)))
    assert (rig.gpu.calls["copy"] - copies, rig.gpu.calls["move"] - moves) == (1, 2), "no copy for these"
    assert rig.engine.close(PATIENCE_S)


def _read(rig: FakeRig, block: int, into: list[bytes]) -> None:
    into.append(rig.read_block(block))


def _write_all(arrays: list[npt.NDArray[np.uint8]], value: int) -> None:
    for array in arrays:
        array[:] = value


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("fenced", [True, False])
def test_f6_a_store_reads_what_compute_that_was_issued_before_it_wrote(route: Route, fenced: bool) -> None:
    """Without its fence the store goes wrong with some seeds; with it, never."""
    wrong = 0
    for seed in range(12):
        rig = FakeRig(Shape(), seed=seed, route=route)
        rig.spin()
        rig.gpu.run_on(rig.compute, partial(_write_all, rig.arrays, 7))
        event = FakeEvent(rig.gpu)
        event.record(rig.compute)
        assert rig.engine.submit(STORE, Copy(1, tuple(range(9)), tuple(range(9))), event.wait if fenced else None)
        assert rig.finish(1).done == (1,)
        wrong += bool((rig.arena.memory != 7).any())
        assert rig.engine.close(PATIENCE_S)
    assert (wrong == 0) == fenced


def test_f6_a_lane_that_could_not_enter_its_stream_tries_again_before_it_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fence is about the stream that is current: on another one it would order nothing."""
    enter, failed = FakeGpu.enter, set[int]()

    def enter_elsewhere_first(gpu: FakeGpu, stream: Stream | None = None) -> None:
        enter(gpu, stream)
        if stream is not None and threading.get_ident() not in failed:
            failed.add(threading.get_ident())
            enter(gpu, gpu.stream())
            raise RuntimeError("not now")

    monkeypatch.setattr(FakeGpu, "enter", enter_elsewhere_first)
    for seed in range(12):
        rig = FakeRig(Shape(), seed=seed)
        rig.spin()
        rig.gpu.run_on(rig.compute, partial(_write_all, rig.arrays, 7))
        event = FakeEvent(rig.gpu)
        event.record(rig.compute)
        assert rig.engine.submit(STORE, Copy(1, tuple(range(9)), tuple(range(9))), event.wait)
        assert rig.finish(1).done == (1,)
        assert (rig.arena.memory == 7).all()
        assert rig.engine.close(PATIENCE_S)
        failed.clear()


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("fenced", [True, False])
def test_f7_a_load_waits_for_compute_that_still_reads_its_blocks(route: Route, fenced: bool) -> None:
    wrong = 0
    for seed in range(12):
        rig = FakeRig(Shape(), seed=seed, route=route)
        _write_all(rig.arrays, 1)
        rig.arena.memory[:] = 2
        read: list[bytes] = []
        rig.spin()
        for block in range(9):
            rig.gpu.run_on(rig.compute, partial(_read, rig, block, read))
        event = FakeEvent(rig.gpu)
        event.record(rig.compute)
        assert rig.engine.submit(LOAD, Copy(1, tuple(range(9)), tuple(range(9))), event.wait if fenced else None)
        assert rig.finish(1).done == (1,)
        rig.compute.synchronize()
        wrong += any(2 in content for content in read)
        assert rig.engine.close(PATIENCE_S)
    assert (wrong == 0) == fenced


@pytest.mark.parametrize("route", Route)
@pytest.mark.parametrize("ordered", [True, False])
def test_compute_that_hears_of_a_load_before_its_end_reads_what_it_brings(route: Route, ordered: bool) -> None:
    """Without waiting for what `certain` gives it, compute reads too early with some seeds."""
    wrong = 0
    for seed in range(12):
        rig = FakeRig(Shape(blocks=40, slots=40), seed=seed, route=route)
        _write_all(rig.arrays, 1)
        rig.arena.memory[:] = 2
        read: list[bytes] = []
        assert rig.engine.submit(LOAD, Copy(1, tuple(range(40)), tuple(range(40))))
        assert rig.engine.wait_certain([1], PATIENCE_S)
        rig.gpu.enter(rig.compute)
        for fence in rig.engine.certain().values() if ordered else ():
            fence()
        for block in (39, 38, 37):
            rig.gpu.run_on(rig.compute, lambda rig=rig, block=block, read=read: read.append(rig.read_block(block)))  # type: ignore[misc]
        rig.compute.synchronize()
        wrong += any(1 in content for content in read)
        assert rig.finish(1).done == (1,)
        assert rig.engine.certain() == {}
        assert rig.engine.close(PATIENCE_S)
    assert (wrong == 0) == ordered


def test_stores_and_loads_that_have_far_to_go_are_not_certain() -> None:
    rig = FakeRig(Shape(blocks=40, slots=40), staging_bytes=80)
    gate = rig.gate()
    assert rig.engine.submit(LOAD, Copy(1, tuple(range(40)), tuple(range(40))), gate.after)
    assert not rig.engine.wait_certain([1], 0.0)
    assert rig.engine.certain() == {}
    gate.open()
    assert rig.engine.submit(STORE, Copy(2, (0,), (0,)))
    assert rig.engine.wait([2], PATIENCE_S)
    assert 2 not in rig.engine.certain()
    assert rig.engine.wait_certain([1], PATIENCE_S)
    assert sorted(rig.finish(1, 2).done) == [1, 2]
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize("call", ["copy", "fetch", "move", "record", "wait_event", "synchronize"])
@pytest.mark.parametrize("direction", Direction)
def test_f15_whatever_call_fails_the_transfer_fails_and_later_ones_work(call: str, direction: Direction) -> None:
    rig = FakeRig(Shape(blocks=40, slots=40))
    rig.gpu.failing[call] = RuntimeError("out of luck")
    done, failed, _ = rig.run(direction, Copy(1, tuple(range(40)), tuple(range(40))))
    assert (done, failed) == ((), ((1, "RuntimeError: out of luck"),))
    for id_, way in enumerate((direction, STORE, LOAD), start=2):
        assert rig.run(way, Copy(id_, (0, 1), (0, 1))) == Finished(done=(id_,))
    assert rig.engine.lost is None
    assert rig.engine.close(PATIENCE_S)


def test_f15_a_transfer_is_not_called_failed_before_its_last_byte_has_moved() -> None:
    """Its blocks go to someone else as soon as it is reported."""
    rig = FakeRig(Shape(blocks=40, slots=40), staging_bytes=80)
    moves = rig.gpu.calls["move"]

    def fail_later() -> None:
        while rig.gpu.calls["move"] < moves + 5:
            time.sleep(0)
        rig.gpu.failing["copy"] = RuntimeError("the fifth chunk")

    other = threading.Thread(target=fail_later)
    other.start()
    rig.run(STORE, Copy(1, tuple(range(40)), tuple(range(40))))
    other.join()
    memory = rig.arena.memory.copy()
    for _ in range(100):
        rig.gpu.run_some()
    assert (rig.arena.memory == memory).all()
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize("noticed_by", ["poll", "issue"])
def test_a_lost_device_fails_everything_once_and_refuses_more(
    noticed_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = FakeRig(Shape())
    gate = rig.gate()
    if noticed_by == "issue":
        assert rig.engine.submit(STORE, Copy(0, (0,), (0,)), gate.after)
        assert gate.reached.wait(PATIENCE_S)
    else:
        assert rig.engine.submit(STORE, Copy(0, (0,), (0,)))
        while not rig.gpu.calls["move"] > 2:
            time.sleep(0.001)
    assert rig.engine.submit(STORE, Copy(1, (1,), (1,)), gate.after)
    assert rig.engine.submit(STORE, Copy(2, (1,), (1,)))
    rig.gpu.lost = True
    gate.open()
    done, failed, _ = rig.finish(0, 1, 2)
    assert not done
    assert [id_ for id_, _ in sorted(failed)] == [0, 1, 2]
    assert all("illegal memory access" in why for _, why in failed)
    assert rig.engine.lost is not None
    assert not rig.engine.submit(STORE, Copy(3, (0,), (0,)))
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert rig.engine.close(PATIENCE_S)
    assert rig.engine.poll() == Finished()


def test_a_compute_event_can_be_the_fence_of_many_transfers() -> None:
    rig = FakeRig(Shape())
    event = FakeEvent(rig.gpu)
    event.record(rig.compute)
    for id_ in range(6):
        assert rig.engine.submit(STORE if id_ % 2 else LOAD, Copy(id_, (id_,), (id_,)), event.wait)
    assert sorted(rig.finish(*range(6)).done) == list(range(6))
    assert rig.engine.close(PATIENCE_S)


def test_submitting_two_thousand_blocks_takes_well_under_a_millisecond() -> None:
    shape = Shape(blocks=2000, slots=2000, fragments=(16,))
    rig = FakeRig(shape, staging_bytes=16 * 2000)
    gate = rig.gate()
    assert rig.engine.submit(STORE, Copy(0, (0,), (0,)), gate.after)
    assert gate.reached.wait(PATIENCE_S)
    copies = [Copy(id_, tuple(range(2000)), tuple(range(2000))) for id_ in range(1, 21)]
    spent_s = []
    for copy in copies:
        begin_s = time.perf_counter()
        assert rig.engine.submit(STORE, copy)
        spent_s.append(time.perf_counter() - begin_s)
    assert min(spent_s) < 1e-3
    gate.open()
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("staging_bytes", 0),
        ("staging_bytes", 2 << 30),
        ("staging_buffers", 1),
        ("max_transfers", 0),
        ("piece_bytes", 4096),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{option}={value}"):
        FakeRig(Shape(), **{option: value})


def test_a_slot_of_another_size_than_a_block_is_refused() -> None:
    gpu = FakeGpu()
    cache = CudaCache([CudaRegion(gpu.adopt(np.zeros(64, np.uint8)), 16, 16)], blocks=4)
    with pytest.raises(ConfigError, match="slot_bytes=17"):
        CudaCopyEngine(cache, HostArena(4, 17), gpu=gpu)


def test_gpu_memory_that_is_not_there_is_a_config_error_that_names_the_option() -> None:
    gpu = FakeGpu()
    gpu.failing["allocate"] = RuntimeError("CUDA out of memory")
    cache = CudaCache([CudaRegion(gpu.adopt(np.zeros(64, np.uint8)), 16, 16)], blocks=4)
    with pytest.raises(ConfigError, match=r"staging_bytes=1024.*CUDA out of memory"):
        CudaCopyEngine(cache, HostArena(4, 16), gpu=gpu, route=Route.STAGED, staging_bytes=1024)


def test_staging_is_counted() -> None:
    rig = FakeRig(Shape(fragments=(1024,)), staging_bytes=8192, staging_buffers=3)
    assert 2 * 3 * 8192 <= rig.engine.device_bytes < 2 * 3 * 8192 + 16_384
    assert rig.engine.close(PATIENCE_S)


def test_a_short_measurement_chooses_the_route_and_the_start_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = FakeRig(Shape(), route=None)
    assert rig.engine.route is Route.STAGED
    assert rig.engine.rates.store > 0
    assert rig.engine.start_line.startswith("CUDA copies: staged")
    assert rig.engine.start_line in caplog.text
    assert rig.run(STORE, Copy(1, (0, 1), (0, 1))).done == (1,)
    assert rig.engine.close(PATIENCE_S)


def test_threads_that_the_system_does_not_give_are_a_config_error_and_none_stays_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(threading.enumerate())
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "kvtide-load":
            raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(ConfigError, match="threads"):
        FakeRig(Shape())
    assert set(threading.enumerate()) <= before


def test_importing_the_package_imports_neither_torch_nor_triton() -> None:
    program = "import sys, kvtide.copy.cuda; sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0  # noqa: S603
