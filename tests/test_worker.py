from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest

from kvtide.copy import (
    DeviceCache,
    Direction,
    Fence,
    Finished,
    HostArena,
    NullCopyEngine,
    ThreadedCopyEngine,
    Traffic,
    regions_of,
)
from kvtide.core.messages import Copy, Plan, Report
from kvtide.core.share import Share
from kvtide.worker import Worker

PATIENCE_S = 30.0


class ScriptedEngine(NullCopyEngine):
    """A null engine that remembers what it was asked and raises, refuses or stays busy on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[tuple[Direction, int, Fence | None]] = []
        self.waited: list[tuple[tuple[int, ...], float]] = []
        self.raising: set[str] = set()
        self.busy = False
        self.memory_went = 0

    def _may_raise(self, name: str) -> None:
        if name in self.raising:
            raise OSError(f"{name} is broken")

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        self._may_raise("submit")
        self.submitted.append((direction, copy.id, after))
        return super().submit(direction, copy, after)

    def poll(self) -> Finished:
        self._may_raise("poll")
        return Finished() if self.busy else super().poll()

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        self._may_raise("wait")
        self.waited.append((tuple(ids), timeout_s))
        return not self.busy

    def device_memory_goes(self) -> None:
        self.memory_went += 1

    def close(self, timeout_s: float = 5.0) -> bool:
        self._may_raise("close")
        super().close(timeout_s)
        return not self.busy

    def traffic(self, direction: Direction) -> Traffic:
        self._may_raise("traffic")
        return super().traffic(direction)


def _copy(id_: int) -> Copy:
    return Copy(id_, (id_,), (id_,))


def test_loads_are_submitted_before_stores_with_the_fence_of_the_step() -> None:
    engine = ScriptedEngine()
    fence = threading.Event().wait
    Worker(0, engine).start(Plan(1, loads=(_copy(3), _copy(4)), stores=(_copy(1),)), after=fence)
    assert engine.submitted == [(Direction.LOAD, 3, fence), (Direction.LOAD, 4, fence), (Direction.STORE, 1, fence)]


def test_each_transfer_is_reported_once_under_the_rank() -> None:
    worker = Worker(2, NullCopyEngine())
    worker.start(Plan(1, loads=(_copy(3),), stores=(_copy(1),)))
    assert worker.poll() == Report(rank=2, done=(3, 1))
    assert worker.poll() == Report(rank=2)


def test_f27_a_rank_stores_its_share_and_loads_everything() -> None:
    arrays = [np.zeros((4, 2), dtype=np.uint8) for _ in range(2)]
    with HostArena(slots=4, slot_bytes=2) as arena:
        caches = [DeviceCache(regions_of(array, 0), blocks=4) for array in arrays]
        workers = [
            Worker(rank, ThreadedCopyEngine(cache, arena), share=Share(rank, 2)) for rank, cache in enumerate(caches)
        ]
        for rank, array in enumerate(arrays):
            array[:] = [[10 * (rank + 1) + block] * 2 for block in range(4)]
        plan = Plan(1, stores=(Copy(1, (0, 1, 2), (3, 2, 1)),), wait_for=(1,))
        for worker in workers:
            worker.start(plan)
            assert worker.poll().done == (1,)
        assert arena.memory[:, 0].tolist() == [0, 12, 11, 20], "each slot has the bytes of one of them"
        for worker in workers:
            worker.start(Plan(2, loads=(Copy(2, (3, 2, 1), (3, 2, 1)),), wait_for=(2,)))
            assert worker.poll().done == (2,)
            worker.close()
        assert [array[1:, 0].tolist() for array in arrays] == [[12, 11, 20], [12, 11, 20]]


def test_how_many_slots_there_are_is_said_once_if_it_is_to_be_said() -> None:
    worker = Worker(1, NullCopyEngine(), slots=5)
    assert worker.poll() == Report(rank=1, slots_ready=5)
    assert worker.poll() == Report(rank=1)


def test_an_engine_that_pins_slots_knows_better() -> None:
    class Pinning(NullCopyEngine):
        def slots_ready(self) -> int | None:
            return 2

    assert Worker(1, Pinning(), slots=5).poll() == Report(rank=1, slots_ready=2)


def test_a_plan_that_comes_twice_is_run_once() -> None:
    engine = ScriptedEngine()
    worker = Worker(0, engine)
    plan = Plan(1, stores=(_copy(1),))
    worker.start(plan)
    worker.start(plan)
    assert len(engine.submitted) == 1
    assert worker.poll() == Report(0, done=(1,))


def test_what_a_plan_waits_for_is_waited_for_with_a_deadline() -> None:
    engine = ScriptedEngine()
    worker = Worker(0, engine, wait_timeout_s=0.25)
    worker.start(Plan(1, stores=(_copy(1),), wait_for=(1, 7)))
    assert engine.waited == [((1, 7), 0.25)]
    assert worker.stats.waits_expired == 0
    engine.busy = True
    worker.start(Plan(2, wait_for=(1,)))
    assert worker.stats.waits_expired == 1


def test_f17_a_submit_that_raises_is_a_failed_transfer_and_the_others_go_on() -> None:
    engine = ScriptedEngine()
    worker = Worker(0, engine)
    engine.raising = {"submit"}
    worker.start(Plan(1, loads=(_copy(1),)))
    engine.raising = set()
    worker.start(Plan(2, loads=(_copy(2),)))
    report = worker.poll()
    assert report.done == (2,)
    assert [id_ for id_, _ in report.failed] == [1]
    assert "submit is broken" in report.failed[0][1]
    assert worker.poll() == Report(0)


def test_a_refused_transfer_is_reported_as_failed() -> None:
    worker = Worker(0, NullCopyEngine(max_transfers=1))
    worker.start(Plan(1, loads=(_copy(1), _copy(2))))
    report = worker.poll()
    assert report.done == (1,)
    assert [id_ for id_, _ in report.failed] == [2]


def test_device_memory_may_go_once_no_copy_is_under_way() -> None:
    engine = ScriptedEngine()
    worker = Worker(0, engine)
    worker.start(Plan(1, stores=(_copy(1), _copy(2))))
    engine.busy = True
    assert not worker.settle(0.5)
    assert engine.memory_went == 0
    engine.busy = False
    assert worker.settle(0.5)
    assert engine.memory_went == 1
    assert [sorted(ids) for ids, _ in engine.waited] == [[1, 2]] * 2
    assert worker.poll().done == (1, 2), "what has ended is still reported"
    engine.raising = {"wait"}
    assert not worker.settle(0.5)


@pytest.mark.parametrize("broken", ["submit", "poll", "wait", "close", "traffic"])
def test_f17_whatever_the_engine_raises_the_worker_lives_and_counts_it(broken: str) -> None:
    engine = ScriptedEngine()
    engine.raising = {broken}
    worker = Worker(0, engine)
    worker.start(Plan(1, stores=(_copy(1),), wait_for=(1,)))
    report = worker.poll()
    assert [*report.done, *(id_ for id_, _ in report.failed)] == [1]
    assert worker.stats.done + worker.stats.failed == 1
    worker.close()
    assert worker.stats.engine_errors > 0


def test_an_engine_that_cannot_be_polled_fails_its_transfers_only_once_nothing_moves() -> None:
    engine = ScriptedEngine()
    worker = Worker(0, engine)
    worker.start(Plan(1, loads=(_copy(1),)))
    engine.raising, engine.busy = {"poll"}, True
    assert worker.poll() == Report(0), "bytes may still arrive in the device block"
    engine.busy = False
    report = worker.poll()
    assert [id_ for id_, _ in report.failed] == [1]
    assert "poll is broken" in report.failed[0][1]
    worker.start(Plan(2, loads=(_copy(2),)))
    assert [id_ for id_, _ in worker.poll().failed] == [2]


def test_an_engine_that_reports_twice_is_heard_once() -> None:
    class Echo(NullCopyEngine):
        def poll(self) -> Finished:
            return Finished(done=(1,), failed=((9, "never submitted"),))

    worker = Worker(0, Echo())
    worker.start(Plan(1, stores=(_copy(1),)))
    assert worker.poll() == Report(0, done=(1,))
    assert worker.poll() == Report(0)


def test_a_closed_worker_reports_what_was_in_flight_as_failed() -> None:
    engine = ScriptedEngine()
    worker = Worker(0, engine)
    worker.start(Plan(1, loads=(_copy(1),)))
    engine.busy = True
    assert not worker.close()
    assert worker.poll() == Report(0)
    engine.poll = Finished  # type: ignore[method-assign] # it has forgotten the transfer
    engine.busy = False
    assert worker.close()
    assert worker.poll() == Report(0, failed=((1, "the worker was closed"),))
    assert worker.poll() == Report(0)


def test_bytes_and_seconds_are_counted_per_direction() -> None:
    cache = DeviceCache(regions_of(np.ones((4, 64), np.uint8), block_axis=0), blocks=4)
    with HostArena(4, 64) as arena:
        worker = Worker(0, ThreadedCopyEngine(cache, arena), wait_timeout_s=PATIENCE_S)
        worker.start(Plan(1, stores=(Copy(1, (0, 1), (2, 3)),), wait_for=(1,)))
        worker.start(Plan(2, loads=(Copy(2, (3,), (2,)),), wait_for=(2,)))
        worker.start(Plan(3, loads=(Copy(3, (99,), (2,)),), wait_for=(3,)))
        report = worker.poll()
        assert report.done == (1, 2)
        assert [id_ for id_, _ in report.failed] == [3]
        stats = worker.stats
        assert worker.close(PATIENCE_S)
    assert (stats.store.bytes, stats.load.bytes) == (128, 64)
    assert stats.store.busy_s > 0
    assert stats.load.busy_s > 0
    assert (stats.done, stats.failed, stats.waits_expired, stats.engine_errors) == (2, 1, 0, 0)


def test_what_there_was_no_place_for_is_said_with_the_store_that_it_belongs_to() -> None:
    class Full(NullCopyEngine):
        def poll(self) -> Finished:
            done = super().poll().done
            return Finished(done, not_kept=((1, (0,)), (9, (4,))))

    worker = Worker(0, Full())
    worker.start(Plan(1, stores=(Copy(1, (3, 4), (0, 1)),)))
    report = worker.poll()
    assert (report.done, report.not_kept) == ((1,), ((1, (0,)),))
    assert not worker.poll()


class GrowingEngine(NullCopyEngine):
    """Has more and more slots."""

    ready = 0

    def slots_ready(self) -> int | None:
        return self.ready


def test_a_worker_reports_how_many_slots_are_ready_when_that_changes() -> None:
    engine = GrowingEngine()
    worker = Worker(0, engine)
    assert worker.poll().slots_ready == 0
    assert worker.poll().slots_ready is None
    engine.ready = 7
    assert worker.poll().slots_ready == 7
    assert not worker.poll()


def test_a_rank_that_is_asked_about_an_overdue_transfer_says_when_it_does_not_copy_it() -> None:
    engine = ScriptedEngine()
    worker = Worker(1, engine)
    worker.start(Plan(1, stores=(_copy(1), _copy(2))))
    assert worker.poll().done == (1, 2)
    engine.busy = True
    worker.start(Plan(2, stores=(_copy(3),)))
    worker.start(Plan(3, ask=(1, 3, 9)))
    why = "this rank has no such transfer under way"
    assert worker.poll() == Report(1, failed=((1, why), (9, why)))
    engine.busy = False
    assert worker.poll() == Report(1, done=(3,)), "its end, whenever that comes"


def test_an_answer_is_not_given_twice_to_one_plan_that_asks_and_has_failed_already() -> None:
    engine = ScriptedEngine()
    engine.raising = {"submit"}
    worker = Worker(0, engine)
    worker.start(Plan(1, stores=(_copy(1),)))
    worker.start(Plan(2, ask=(1,)))
    assert [id_ for id_, _ in worker.poll().failed] == [1]


def test_f17_an_engine_whose_poll_raises_is_used_no_more_and_the_worker_says_why() -> None:
    engine = ScriptedEngine()
    worker = Worker(0, engine)
    worker.start(Plan(1, loads=(_copy(1),)))
    engine.raising = {"poll"}
    report = worker.poll()
    assert [id_ for id_, _ in report.failed] == [1]
    assert "poll is broken" in str(worker.over)
    engine.raising = set()
    worker.start(Plan(2, loads=(_copy(2),)))
    assert len(engine.submitted) == 1
    assert [id_ for id_, _ in worker.poll().failed] == [2]


def test_a_worker_that_is_stopped_reports_what_is_under_way_when_nothing_moves_any_more() -> None:
    engine = ScriptedEngine()
    engine.busy = True
    worker = Worker(0, engine)
    worker.start(Plan(1, stores=(_copy(1),)))
    worker.stop("told to")
    worker.stop("another reason")
    assert worker.poll() == Report(0), "its blocks may still be read"
    engine.busy = False
    report = worker.poll()
    assert (*report.done, *(id_ for id_, _ in report.failed)) == (1,)
    assert worker.over == "told to"
