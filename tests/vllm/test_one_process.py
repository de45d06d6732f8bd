"""Scheduler and worker in one process, as vLLM has them for one rank: the end of a copy is known without a message."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from kvtide.copy import Direction, Fence, Finished
from kvtide.core import Copy
from kvtide.vllm.step_messages import Looked
from kvtide.vllm.worker_side import WorkerSide
from tests.vllm.engines import Control, ControlledEngine
from tests.vllm.world import BLOCK_TOKENS, World, text

DOCUMENT_BLOCKS = 32
DOCUMENT_TOKENS = DOCUMENT_BLOCKS * BLOCK_TOKENS


class BesideComputeEngine(ControlledEngine):
    """What is submitted in a step is copied while that step computes, and is over when the step is."""

    issued = over = 0
    """The last step that was issued, and the last one that is over."""
    step_of: dict[int, int]

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        self.step_of = {**getattr(self, "step_of", {}), copy.id: self.issued}
        return super().submit(direction, copy, after)

    def poll(self) -> Finished:
        early = {id_: job for id_, job in self.waiting.items() if self.step_of[id_] > self.over}
        self.waiting = {id_: job for id_, job in self.waiting.items() if id_ not in early}
        finished = super().poll()
        self.waiting.update(early)
        return finished


class BesideCompute(World):
    """Steps are issued while others compute, and copies of a step are over when that is."""

    control: Control

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        control = Control(BesideComputeEngine)
        super().__init__(path, control=control, monkeypatch=monkeypatch, asynchronous=True, **options)

    @property
    def engine(self) -> BesideComputeEngine:
        engine = self.control.engine
        assert isinstance(engine, BesideComputeEngine)
        return engine

    def _execute(self, step: Any) -> Any:
        self.engine.issued += 1
        return super()._execute(step)

    def _process(self, step: Any, output: Any) -> None:
        self.engine.over += 1
        super()._process(step, output)


class Documents(BesideCompute):
    """Twelve documents at once: each is one step, and four of them fit."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, new_tokens: int, **options: Any) -> None:
        super().__init__(
            path,
            monkeypatch,
            blocks=4 * (DOCUMENT_BLOCKS + 2),
            host_blocks=800,
            max_tokens=DOCUMENT_TOKENS + 32,
            step_tokens=DOCUMENT_TOKENS + BLOCK_TOKENS,
            **options,
        )
        self.generate("warm-up", text(100, BLOCK_TOKENS + 1))  # once the worker has spoken it can be asked
        self.computing_steps = 0
        self.stored_beside_decoding = 0
        for number in range(12):
            self.add(f"document {number}", text(number, DOCUMENT_TOKENS), new_tokens)
        while self.scheduler.has_unfinished_requests():
            step = self.step()
            tokens = step.total_num_scheduled_tokens
            self.computing_steps += tokens > 0
            if tokens == len(step.num_scheduled_tokens):
                self.stored_beside_decoding += sum(len(copy.blocks) for copy in step.kv_connector_metadata.plan.stores)
        self.run()
        self.check_at_rest()


@pytest.mark.parametrize("new_tokens", [4, 6, 16])
def test_pins_of_stores_that_are_over_keep_no_document_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_tokens: int
) -> None:
    nothing_stored = Documents(tmp_path, monkeypatch, new_tokens=new_tokens, admission="second-use")
    world = Documents(tmp_path, monkeypatch, new_tokens=new_tokens, one_process=True)
    assert world.computing_steps == nothing_stored.computing_steps


def test_f4_stores_keep_up_with_documents_of_one_step_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Documents(tmp_path, monkeypatch, new_tokens=6, one_process=True)
    assert world.manager.metrics.not_stored == {}
    assert world.manager.metrics.stored_blocks == 1 + 12 * DOCUMENT_BLOCKS


def test_stores_do_not_wait_for_steps_that_only_decode_where_a_copy_costs_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Documents(tmp_path, monkeypatch, new_tokens=16, one_process=True)
    assert world.manager.metrics.stored_blocks == 1 + 12 * DOCUMENT_BLOCKS
    # Of four documents the last one is there when nothing else is to be computed.
    assert world.stored_beside_decoding <= 3 * DOCUMENT_BLOCKS


def steps_until_loaded_runs(path: Path, monkeypatch: pytest.MonkeyPatch, *, one_process: bool) -> int:
    """Return how many steps are issued from the end of a load on, up to the one in which its request runs."""
    world = World(path, control=Control(), monkeypatch=monkeypatch, asynchronous=True, one_process=one_process)
    world.generate("first", text(1, 100))
    world.evict_device()
    world.add("other", text(2, 40), 60)
    world.step()
    world.control.engine.held = {Direction.LOAD}
    world.add("again", text(1, 100))
    for _ in range(4):
        world.step()
    world.control.engine.held = set()
    steps = 1
    while "again" not in world.step().num_scheduled_tokens:
        steps += 1
    world.run()
    world.check_at_rest()
    assert world.hits["again"] == 96
    return steps


def test_a_request_runs_in_the_next_step_that_is_planned_after_its_load_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_until_loaded_runs(tmp_path, monkeypatch, one_process=True) == 2, "one was planned already"
    assert steps_until_loaded_runs(tmp_path, monkeypatch, one_process=False) == 3


class FollowUp(BesideCompute):
    """One request that is loaded beside another one."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        super().__init__(path, monkeypatch, **options)
        self.generate("first", text(1, 100))
        self.evict_device()
        self.add("beside", text(2, 30), 40)
        self.step()
        self.add("again", text(1, 100))
        self.waited_steps = 0
        while "again" not in self.step().num_scheduled_tokens:
            self.waited_steps += 1


def test_a_load_is_heard_of_when_the_step_is_over_beside_which_it_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_reports = FollowUp(tmp_path, monkeypatch)
    world = FollowUp(tmp_path, monkeypatch, one_process=True)
    # The step of the load, and the one that was scheduled while it was copied.
    assert (world.waited_steps, by_reports.waited_steps) == (2, 4)
    world.run()
    world.check_at_rest()
    assert world.hits["again"] == 96


def test_f8_a_load_that_fails_is_said_together_with_what_vllm_hears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM has looked at what failed when the scheduler's half asks."""
    world = World(tmp_path, control=Control(), monkeypatch=monkeypatch, asynchronous=True, one_process=True)
    world.generate("first", text(1, 100))
    world.evict_device()
    world.control.engine.held = {Direction.LOAD}
    world.add("again", text(1, 100))
    world.step()
    side = world.workers[0]._worker
    assert isinstance(side, WorkerSide)
    assert side.loads.untold
    world.control.engine.held, world.control.engine.failing = set(), {Direction.LOAD}
    assert side.look() == Looked()
    assert side.look() == Looked(), "it is still to be told"
    world.run()
    world.check_at_rest()
    assert world.hits["again"] == 0
    assert world.manager.metrics.loads_failed == 1


def test_what_can_be_asked_in_one_process_does_not_go_through_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, control=Control(), monkeypatch=monkeypatch)
    world.add("first", text(1, 100))
    world.step()
    world.control.engine.held = {Direction.STORE}
    world.step()
    side = world.workers[0]._worker
    world.control.engine.held = set()
    side.poll()
    said = side.take_report()
    assert said is not None
    assert said.reports
    assert said.look is not None
    received = pickle.loads(pickle.dumps(said))  # noqa: S301 (our own bytes)
    assert received.look is None
    assert (received.reports, received.off, received.timed) == (said.reports, said.off, said.timed)
