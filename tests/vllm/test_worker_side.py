"""A worker's half on a copy engine that does what it is told: what is announced when, and what a lost GPU means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from kvtide.copy import CopyEngine, Direction, Fence, Finished, HostArena, Traffic, shared_memory
from kvtide.core import Copy, Plan
from kvtide.core.share import Share
from kvtide.errors import CopyError
from kvtide.vllm import kv_tensors, step_lengths
from kvtide.vllm.log import logger
from kvtide.vllm.options import Copying
from kvtide.vllm.sharing import Sharing
from kvtide.vllm.step_messages import StepMetadata
from kvtide.vllm.worker_side import WorkerSide
from tests.vllm.meeting import Meeting, in_parallel

SLOTS = 4
FULL = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)
STATES = MambaSpec(block_size=16, shapes=((1,),), dtypes=(torch.float32,))
COPYING = Copying(threads=1, staging_bytes=1)


class ToldEngine(CopyEngine):
    """Reports what it is told to."""

    def __init__(self) -> None:
        self.submitted: list[int] = []
        self.done: tuple[int, ...] = ()
        self.failed: tuple[tuple[int, str], ...] = ()
        self.sure: set[int] = set()
        self.left_s = 0.0
        """Until these are over."""
        self.waited: list[int] = []
        """Loads that compute was made to wait for."""
        self.gone: str | None = None
        self.closed = self.has_started = False
        self.broken = False
        """Whether `poll` raises."""

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        self.submitted.append(copy.id)
        return self.gone is None

    def poll(self) -> Finished:
        if self.broken:
            raise OSError("a bug")
        finished = Finished(self.done, self.failed)
        self.sure -= {*self.done, *dict(self.failed)}
        self.done, self.failed = (), ()
        return finished

    def certain(self, within_s: float = math.inf) -> Mapping[int, Fence]:
        return {id_: partial(self.waited.append, id_) for id_ in self.sure if self.left_s <= within_s}

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        return True

    def started(self) -> None:
        self.has_started = True

    def close(self, timeout_s: float = 5.0) -> bool:
        self.closed = True
        return True

    def traffic(self, direction: Direction) -> Traffic:
        return Traffic()

    @property
    def lost(self) -> str | None:
        return self.gone


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[ToldEngine]:
    made: list[ToldEngine] = []

    def make(stripes: Any, blocks: int, slots: int, copying: Copying, sharing: Sharing) -> tuple[CopyEngine, HostArena]:
        made.append(ToldEngine())
        return made[-1], sharing.open_arena(slots, 16)

    monkeypatch.setattr(kv_tensors, "make_copy_engine", make)
    monkeypatch.setattr(kv_tensors, "stripes_of", lambda *_: [SimpleNamespace()])
    monkeypatch.setattr(kv_tensors, "fence", lambda _: None)
    return made


@pytest.fixture
def side(engines: list[ToldEngine]) -> WorkerSide:
    return make_side(FULL)


def make_side(*specs: Any, **options: Any) -> WorkerSide:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    config = SimpleNamespace(num_blocks=8, kv_cache_groups=groups)
    return WorkerSide(0, config, COPYING, SLOTS, {"layer": object()}, **options)


def step(
    side: WorkerSide, *loads: Copy, slots: int = SLOTS, arrived: tuple[str, ...] = (), computes: bool = False
) -> None:
    side.begin_step(StepMetadata(Plan(1, loads=loads), slots, idle=not (loads or computes), arrived=arrived))
    side.forward_issued()
    side.poll()
    side.end_step()


LOAD = Copy(7, (1, 2), (0, 1), request_id="r")


def test_the_host_tier_is_there_before_the_first_step(side: WorkerSide, engines: list[ToldEngine]) -> None:
    assert len(engines) == 1
    step(side)
    assert len(engines) == 1


def test_f20_the_rest_of_host_memory_is_pinned_when_vllm_has_started_or_begins_a_step(
    engines: list[ToldEngine],
) -> None:
    asked, stepped = make_side(FULL), make_side(FULL)
    assert not any(engine.has_started for engine in engines)
    asked.started()
    step(stepped)
    assert all(engine.has_started for engine in engines)


def test_f22_what_the_scheduler_says_of_the_size_counts(side: WorkerSide, engines: list[ToldEngine]) -> None:
    step(side, slots=SLOTS + 1)
    assert [engine.closed for engine in engines] == [True, False]


def make_two_sides() -> list[WorkerSide]:
    """Two ranks that hold the same KV."""
    meeting = Meeting(2)
    config = SimpleNamespace(num_blocks=8, kv_cache_groups=[SimpleNamespace(kv_cache_spec=FULL)])

    def make(rank: int) -> WorkerSide:
        sharing = Sharing(Share(rank, 2), rank, meeting.gather)
        return WorkerSide(rank, config, COPYING, SLOTS, {"layer": object()}, sharing=sharing)

    return in_parallel(make, range(2))


@pytest.mark.parametrize("slots", [SLOTS, SLOTS + 1])
def test_f27_two_ranks_share_as_many_slots_as_the_scheduler_says(engines: list[ToldEngine], slots: int) -> None:
    sides = make_two_sides()
    in_parallel(lambda rank: step(sides[rank], slots=slots), range(2))
    arenas = [side._arena for side in sides if side._arena is not None]
    assert [arena.slots for arena in arenas] == [slots, slots]
    arenas[0].memory[slots - 1] = 7
    assert arenas[1].memory[slots - 1, 0] == 7
    reports = [said.reports[-1] for side in sides if (said := side.take_report()) is not None]
    assert [report.slots_ready for report in reports] == [slots, slots]
    for side in sides:
        side.shutdown()


def test_f27_two_ranks_that_cannot_share_say_how_many_slots_each_has(
    engines: list[ToldEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(offer: shared_memory.Offer) -> int:
        raise CopyError(f"{offer.process} is out of reach")

    monkeypatch.setattr(shared_memory, "find", refuse)
    sides = make_two_sides()
    in_parallel(lambda rank: step(sides[rank]), range(2))
    reports = [said.reports[-1] for side in sides if (said := side.take_report()) is not None]
    assert [report.slots_ready for report in reports] == [SLOTS // 2, SLOTS // 2]
    for side in sides:
        side.shutdown()


def test_a_load_is_announced_once_it_is_certain_and_compute_waits_for_its_end(
    side: WorkerSide, engines: list[ToldEngine]
) -> None:
    step(side, LOAD)
    assert side.loads.take_finished() == (set(), set())
    engines[0].sure.add(7)
    step(side)
    assert side.loads.take_finished() == ({"r"}, set())
    assert side.take_report() is None, "its pins stay"
    assert engines[0].waited == []
    step(side, arrived=("r",))
    assert engines[0].waited == [7]
    step(side)
    assert engines[0].waited == [7, 7], "every step until its end"
    engines[0].done = (7,)
    step(side)
    assert side.loads.take_finished() == (set(), set()), "once"
    report = side.take_report()
    assert report is not None
    assert report.reports[0].done == (7,)
    waited = len(engines[0].waited)
    step(side)
    assert len(engines[0].waited) == waited


def test_f31_a_step_that_was_scheduled_before_a_load_was_heard_of_does_not_wait_for_it(
    side: WorkerSide, engines: list[ToldEngine]
) -> None:
    """vLLM schedules a step while another one computes: what decodes there knows nothing of the load."""
    step(side, LOAD, Copy(8, (3,), (2,), request_id="other"))
    engines[0].sure |= {7, 8}
    step(side)
    assert side.loads.take_finished() == ({"r", "other"}, set())
    step(side)
    assert engines[0].waited == []
    step(side, arrived=("r",))
    assert engines[0].waited == [7]


def let_steps_take_a_second(monkeypatch: pytest.MonkeyPatch, *, computes: bool) -> None:
    """`computes`: whether the device does when somebody asks."""
    now_s = iter(range(10))
    monkeypatch.setattr(step_lengths, "time", SimpleNamespace(monotonic=lambda: float(next(now_s))))
    monkeypatch.setattr(kv_tensors, "computes", lambda _: computes)


def test_f31_vllm_hears_of_a_load_when_it_is_over_before_the_next_step_or_nobody_computes(
    side: WorkerSide, engines: list[ToldEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_steps_take_a_second(monkeypatch, computes=True)
    step(side, computes=True)
    step(side, LOAD)
    engines[0].sure, engines[0].left_s = {7}, 1.5
    step(side, computes=True)
    assert side.loads.take_finished() == (set(), set())
    engines[0].left_s = 0.5
    step(side, computes=True)
    assert side.loads.take_finished() == ({"r"}, set())
    step(side, Copy(8, (3,), (2,), request_id="other"))
    engines[0].sure, engines[0].left_s = {8}, 1.5
    step(side)
    assert side.loads.take_finished() == ({"other"}, set())


def test_f31_without_asynchronous_scheduling_the_next_step_computes_at_once(
    side: WorkerSide, engines: list[ToldEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the scheduler looks, the last step is over, and no other one is issued."""
    let_steps_take_a_second(monkeypatch, computes=False)
    step(side, computes=True)
    step(side, LOAD)
    engines[0].sure, engines[0].left_s = {7}, 0.5
    assert side.look().loaded == set()
    engines[0].left_s = 0.25
    assert side.look().loaded == {"r"}


def test_f7_vllm_hears_of_a_load_of_states_only_when_its_bytes_are_there(engines: list[ToldEngine]) -> None:
    """It reads states before compute can be made to wait."""
    side = make_side(FULL, STATES)
    step(side, LOAD)
    engines[0].sure.add(7)
    step(side)
    assert side.loads.take_finished() == (set(), set()), "certain is not enough"
    engines[0].done = (7,)
    step(side)
    assert side.loads.take_finished() == ({"r"}, set())
    assert engines[0].waited == []


def test_f8_a_load_that_fails_after_its_request_was_let_go_is_never_served(
    side: WorkerSide, engines: list[ToldEngine]
) -> None:
    step(side, LOAD)
    engines[0].sure.add(7)
    step(side)
    engines[0].failed = ((7, "the GPU is lost"),)
    with pytest.raises(CopyError, match="the GPU is lost"):
        side.poll()


def test_copies_that_fail_one_after_the_other_do_not_fill_the_log(
    side: WorkerSide, engines: list[ToldEngine], vllm_log: pytest.LogCaptureFixture
) -> None:
    for id_ in range(20):
        engines[0].failed = ((id_, "no room"),)
        step(side, Copy(id_, (1,), (0,), request_id=f"r{id_}"))
    assert [record.getMessage() for record in vllm_log.records] == [
        "kvtide: rank 0 could not copy: no room",
        "kvtide: rank 0 could not copy (10 times so far): no room",
    ]


def test_a_lost_device_is_said_once_and_the_scheduler_hears_of_it(
    side: WorkerSide, engines: list[ToldEngine], caplog: pytest.LogCaptureFixture
) -> None:
    step(side, LOAD)
    engines[0].gone = "the GPU is lost"
    engines[0].failed = ((7, "the GPU is lost"),)
    said = []
    side.poll()
    assert side.loads.take_finished() == ({"r"}, {"r"})
    said.append(side.take_report())
    for id_ in range(8, 11):
        step(side, Copy(id_, (1,), (0,), request_id=f"r{id_}"))
        said.append(side.take_report())
    assert all(report is not None and report.off for report in said)


def test_f15_a_copy_engine_that_breaks_is_said_once_and_the_scheduler_hears_of_it(
    side: WorkerSide, engines: list[ToldEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[tuple[object, ...]] = []
    monkeypatch.setattr(logger, "error", lambda *words: errors.append(words))
    step(side, LOAD)
    assert side.take_report() is None
    engines[0].broken = True
    said = []
    for id_ in range(8, 11):
        step(side, Copy(id_, (1,), (0,), request_id=f"r{id_}"))
        said.append(side.take_report())
    assert all(report is not None and report.off for report in said)
    assert side.loads.take_finished() == ({"r", "r8", "r9", "r10"}, {"r", "r8", "r9", "r10"})
    assert engines[0].submitted == [7, 8], "from then on nothing is submitted"
    [error] = errors
    assert "OSError: a bug" in str(error[-1])


def test_a_rank_that_turns_itself_off_says_so_though_it_has_nothing_else_to_say(
    side: WorkerSide, engines: list[ToldEngine]
) -> None:
    step(side)
    engines[0].gone = "the GPU is lost"
    step(side)
    report = side.take_report()
    assert report is not None
    assert (report.reports, report.off) == ((), True)
    step(side)
    assert side.take_report() is None, "once"


def test_i8_an_overdue_load_is_announced_as_failed_once_and_its_end_is_for_the_core_alone(
    side: WorkerSide, engines: list[ToldEngine]
) -> None:
    step(side, LOAD)
    for _ in range(2):
        side.begin_step(StepMetadata(Plan(2, ask=(7,)), SLOTS, idle=True))
        side.poll()
    assert side.loads.take_finished() == ({"r"}, {"r"})
    assert side.loads.take_unfilled() == {1, 2}
    assert side.take_report() is None, "it may still be copied: its pins stay"
    engines[0].done = (7,)
    side.poll()
    assert side.loads.take_finished() == (set(), set())
    report = side.take_report()
    assert report is not None
    assert report.reports[0].done == (7,)


def test_i8_a_rank_that_has_announced_an_overdue_load_does_not_do_so_again(
    side: WorkerSide, engines: list[ToldEngine]
) -> None:
    step(side, LOAD)
    engines[0].done = (7,)
    side.poll()
    assert side.loads.take_finished() == ({"r"}, set())
    side.take_report()  # and this is lost
    side.begin_step(StepMetadata(Plan(2, ask=(7,)), SLOTS, idle=True))
    side.poll()
    assert side.loads.take_finished() == (set(), set())
    report = side.take_report()
    assert report is not None
    assert [id_ for id_, _ in report.reports[0].failed] == [7]


STORE = Copy(8, (3,), (3,))


@pytest.mark.parametrize("computes", [False, True])
def test_f31_a_step_without_a_forward_pass_waits_for_copies_only_if_nothing_computes(
    side: WorkerSide, engines: list[ToldEngine], monkeypatch: pytest.MonkeyPatch, computes: bool
) -> None:
    """vLLM issues empty steps beside others: with several batches in flight, whose results would be late."""
    waits: list[tuple[int, ...]] = []
    monkeypatch.setattr(kv_tensors, "computes", lambda _: computes)
    monkeypatch.setattr(ToldEngine, "wait", lambda _, ids, __: waits.append(tuple(ids)))
    side.begin_step(StepMetadata(Plan(1, stores=(STORE,), wait_for=(STORE.id,)), SLOTS, idle=True))
    assert waits == ([] if computes else [(STORE.id,)])
    side.begin_step(StepMetadata(Plan(2, loads=(LOAD,), wait_for=(LOAD.id,)), SLOTS, idle=True))
    assert waits == ([] if computes else [(STORE.id,), (LOAD.id,)])


def test_i8_stores_begin_though_vllm_does_not_end_the_step(side: WorkerSide, engines: list[ToldEngine]) -> None:
    """With speculative decoding it does so where it samples: stages of a pipeline but the last one never hear of it."""
    side.begin_step(StepMetadata(Plan(1, stores=(Copy(8, (3,), (3,), filled=False),)), SLOTS))
    side.poll()
    assert engines[0].submitted == [], "its blocks are being computed"
    side.begin_step(StepMetadata(Plan(2), SLOTS))
    assert engines[0].submitted == [8]
    side.begin_step(StepMetadata(Plan(3), SLOTS))
    assert engines[0].submitted == [8], "once"


@pytest.mark.parametrize("frees_deferred", [False, True])
def test_f7_loads_do_not_wait_for_the_step_in_flight_if_vllm_gives_out_nothing_that_it_uses(
    engines: list[ToldEngine], monkeypatch: pytest.MonkeyPatch, frees_deferred: bool
) -> None:
    issued, fences = 0, dict[int, int]()

    def compute_so_far(_: object) -> Fence:
        return partial(int, issued)

    def submit(_: object, __: Direction, copy: Copy, after: Fence | None = None) -> bool:
        assert after is not None
        fences[copy.id] = int(str(after()))
        return True

    monkeypatch.setattr(kv_tensors, "fence", compute_so_far)
    monkeypatch.setattr(ToldEngine, "submit", submit)
    side = make_side(FULL)
    for number in range(1, 5):
        plan = Plan(number, loads=(Copy(number, (1,), (0,), "r"),), stores=(Copy(10 + number, (2,), (1,)),))
        side.begin_step(StepMetadata(plan, SLOTS, frees_deferred=frees_deferred))
        issued += 1
        side.end_step()
        if number == 3:
            assert side.settle(0.0)
    stores = {11: 0, 12: 1, 13: 2, 14: 3}
    # Nobody knows what vLLM does with memory that it had given back, so then a load waits for all compute.
    assert fences == stores | ({1: 0, 2: 0, 3: 1, 4: 3} if frees_deferred else {1: 0, 2: 1, 3: 2, 4: 3})


def register(side: WorkerSide, monkeypatch: pytest.MonkeyPatch, address: int) -> None:
    stripe = kv_tensors.Stripe(SimpleNamespace(data_ptr=lambda: address), 0, 1)
    monkeypatch.setattr(kv_tensors, "stripes_of", lambda *_: [stripe])
    side.register({"layer": object()})


def test_f8_a_kv_cache_that_is_registered_again_does_not_replace_what_the_host_holds(
    engines: list[ToldEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    side = make_side(FULL)
    register(side, monkeypatch, 4096)
    side.begin_step(StepMetadata(Plan(1, stores=(STORE,)), SLOTS, idle=True))
    made = len(engines)
    register(side, monkeypatch, 4096)
    side.poll()
    assert side.take_report() is None, "the same one: nothing has happened"
    register(side, monkeypatch, 8192)
    step(side, LOAD)
    report = side.take_report()
    assert report is not None
    assert report.off, "another one: this rank copies no more"
    assert len(engines) == made
    assert 7 not in engines[-1].submitted


def test_a_kv_cache_may_be_registered_again_before_anything_was_stored(
    engines: list[ToldEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    side = make_side(FULL)
    register(side, monkeypatch, 4096)
    register(side, monkeypatch, 8192)
    step(side, LOAD)
    assert engines[-1].submitted == [7]
    assert all(engine.closed for engine in engines[:-1])
