"""A worker gets at the memory of a node in each life, holds no step up, and says when it is done with it (I10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvtide.copy import HostArena
from kvtide.core.messages import Pool
from kvtide.core.share import Share
from kvtide.node import memory as memory_module
from kvtide.node.client import Client
from kvtide.node.hello import Hello, Role
from kvtide.node.index_link import IndexLink
from kvtide.node.memory import NodeMemory
from tests.left_behind import Before
from tests.node.support import MANY_CONNECTIONS, Rig, held, serving, wait_until


class Worker:
    """One rank's half, and what it says."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.lines: list[str] = []
        share = more.pop("share", Share())
        self.memory = NodeMemory(path, Hello(Role.WORKER, engine="engine", **more), self.lines.append, share=share)

    def join(self, pool: Pool) -> HostArena:
        found: list[HostArena | None] = []

        def has_joined() -> bool:
            found.append(self.memory.join(pool))
            return found[-1] is not None

        wait_until(has_joined)
        assert found[-1] is not None
        return found[-1]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with serving(tmp_path) as rig:
        yield rig


def pool_of(scheduler: Client, life: int = 1) -> Pool:
    assert scheduler.welcome is not None
    return Pool(life, scheduler.welcome.epoch, scheduler.welcome.owner)


def test_ranks_of_one_part_have_the_same_memory(rig: Rig) -> None:
    pool = pool_of(rig.scheduler())
    first, second = Worker(rig.path, rank=0), Worker(rig.path, rank=1, share=Share(1, 2))
    one, other = first.join(pool), second.join(pool)
    assert (one.slots, one.slot_bytes, one.shared, one.share, other.share) == (4, 1000, True, Share(), Share(1, 2))
    one.memory[2, :] = 7
    assert other.memory[2].sum() == 7000
    for worker, arena in ((first, one), (second, other)):
        arena.close()
        worker.memory.drained()
    assert first.lines == second.lines == []


def test_a_rank_whose_memory_is_not_next_to_its_gpu_says_so_once(rig: Rig) -> None:
    rig.handler.far = "memory of NUMA node 0 and a GPU next to NUMA node 1"
    worker = Worker(rig.path, rank=2, numa_node=1)
    for life in (1, 2):
        scheduler = rig.scheduler(f"engine {life}")
        worker.join(pool_of(scheduler, life)).close()
        worker.memory.drained()
    line = f"rank 2 has {rig.handler.far}, at the node at {rig.path}: copies are slower ("
    assert [each[: len(line)] for each in worker.lines] == [line]
    worker.memory.close()


def test_a_life_is_over_at_the_node_when_its_worker_is_done_with_it(rig: Rig) -> None:
    scheduler, worker = rig.scheduler(), Worker(rig.path)
    worker.join(pool_of(scheduler)).close()
    scheduler.close()
    wait_until(lambda: rig.handler.told == [("ending", "engine")])
    rig.check_alive()
    assert rig.handler.told == [("ending", "engine")], "it may still copy"
    worker.memory.drained()
    wait_until(lambda: rig.handler.told == [("ending", "engine"), ("over", "engine")])
    worker.memory.close()


def test_f28_a_worker_can_tell_without_asking_that_its_node_is_gone(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "node.sock", MANY_CONNECTIONS, None, 30.0)
    worker = Worker(rig.path)
    assert not worker.memory.is_gone(), "there was none"
    arena = worker.join(pool_of(rig.scheduler()))
    rig.check_alive()
    assert not worker.memory.is_gone()
    rig.close()
    wait_until(worker.memory.is_gone)
    arena.close()
    worker.memory.close()
    assert not worker.memory.is_gone()


def test_what_is_lost_with_a_connection_is_said_by_the_next_hello(rig: Rig) -> None:
    scheduler, worker = rig.scheduler(), Worker(rig.path)
    worker.join(pool_of(scheduler)).close()
    assert worker.memory._client is not None
    worker.memory._client.close()  # it breaks
    wait_until(lambda: rig.handler.told == [("ending", "engine")])
    worker.memory.drained()
    rig.check_alive()
    assert rig.handler.told == [("ending", "engine")], "nobody has heard it"
    second = rig.scheduler()
    worker.join(pool_of(second, 2)).close()
    wait_until(lambda: rig.handler.told == [("ending", "engine"), ("over", "engine")])
    worker.memory.drained()


def test_another_worker_that_comes_says_nothing_of_the_first_one(rig: Rig) -> None:
    scheduler, worker, other = rig.scheduler(), Worker(rig.path), Worker(rig.path)
    worker.join(pool_of(scheduler)).close()
    scheduler.close()
    other.join(pool_of(rig.scheduler(), 2)).close()
    rig.check_alive()
    assert rig.handler.told == [("ending", "engine")]
    for each in (worker, other):
        each.memory.drained()


def test_a_refusal_for_good_is_said_once_and_asked_again_in_another_life_only(rig: Rig) -> None:
    scheduler, worker = rig.scheduler(), Worker(rig.path, part=1)
    for _ in range(3):
        assert worker.memory.join(pool_of(scheduler)) is None
    wait_until(lambda: worker.memory.join(pool_of(scheduler)) is None and worker.lines)
    assert worker.lines == [f"rank 0 has no memory of the node at {rig.path}: no such part"]
    refused = rig.server.refused
    assert worker.memory.join(pool_of(scheduler)) is None
    rig.check_alive()
    assert rig.server.refused == refused == 1
    wait_until(lambda: worker.memory.join(pool_of(scheduler, 2)) is None and rig.server.refused == 2)


def test_a_life_that_the_node_does_not_know_is_asked_for_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "RETRY_S", 0.0)
    worker = Worker(rig.path)
    wrong = Pool(1, "another-epoch", 1)
    wait_until(lambda: worker.memory.join(wrong) is None and rig.server.refused >= 2)
    assert len(worker.lines) == 1
    assert worker.lines[0].endswith("this is another life of the node than the scheduler knows")
    worker.join(pool_of(rig.scheduler(), 2)).close()
    worker.memory.drained()


def test_without_a_node_there_is_no_memory_and_one_line(tmp_path: Path) -> None:
    before = Before()
    worker = Worker(tmp_path / "nothing")
    for _ in range(3):
        assert worker.memory.join(Pool(1, "epoch", 1)) is None
    assert len(worker.lines) == 1
    worker.memory.drained()
    worker.memory.close()
    assert worker.memory.join(Pool(1, "epoch", 1)) is None, "it was closed"
    before.check()


def test_an_answer_that_takes_its_time_is_taken_in_a_later_step(rig: Rig) -> None:
    scheduler, worker = rig.scheduler(), Worker(rig.path)
    gate = held(rig)
    assert worker.memory.join(pool_of(scheduler)) is None
    assert worker.memory.join(pool_of(scheduler)) is None
    gate.set()
    worker.join(pool_of(scheduler)).close()
    assert rig.server.refused == 0, "it has asked once"
    worker.memory.drained()


def test_a_node_that_does_not_answer_is_waited_for_and_that_is_said_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that leaves ends the life of its engine, and the next one would have to wait as long."""
    monkeypatch.setattr(memory_module, "HELLO_S", 0.0)
    scheduler, worker = rig.scheduler(), Worker(rig.path)
    gate = held(rig)
    for _ in range(3):
        assert worker.memory.join(pool_of(scheduler)) is None
    gate.set()
    worker.join(pool_of(scheduler)).close()
    [line] = worker.lines
    assert line.endswith("it has not answered a hello for 0 s")
    assert rig.handler.told == [], "its life goes on"
    worker.memory.drained()


@pytest.mark.parametrize("is_heard", [False, True], ids=["its hello is not heard", "its welcome is not read"])
def test_f28_a_worker_that_leaves_before_it_is_answered_keeps_no_life_at_the_node(rig: Rig, is_heard: bool) -> None:
    scheduler, worker = rig.scheduler(), Worker(rig.path)
    gate = held(rig)
    assert worker.memory.join(pool_of(scheduler)) is None
    if is_heard:
        gate.set()
        wait_until(lambda: rig.call(lambda: rig.server.connections) == 2)
        rig.check_alive()
    worker.memory.close()
    gate.set()
    wait_until(lambda: rig.call(lambda: rig.server.connections) == 1)
    assert rig.handler.told == [], "the others go on"
    scheduler.close()
    wait_until(lambda: rig.handler.told == [("ending", "engine"), ("over", "engine")])


# ---------------------------------------------------------------------- the scheduler's half, at its start


def test_at_its_start_a_scheduler_waits_for_a_node_that_listens_and_names_its_pool(rig: Rig) -> None:
    link = IndexLink(rig.path, Hello(Role.SCHEDULER, engine="engine", namespace={"parts": [1000]}), print)
    assert (link.life, link.pool) == (None, None)
    assert link.attach(20.0)
    assert link.life == 1
    pool = link.pool
    assert pool is not None
    assert (pool.life, pool.epoch) == (1, "this-epoch")
    worker = Worker(rig.path)
    worker.join(pool).close()
    worker.memory.drained()
    link.close()
    assert link.pool is None


def test_at_its_start_a_scheduler_does_not_wait_for_a_node_that_is_not_there(tmp_path: Path) -> None:
    lines: list[str] = []
    link = IndexLink(tmp_path / "nothing", Hello(Role.SCHEDULER), lines.append)
    assert not link.attach(1e9)
    assert len(lines) == 1
    link.close()


def test_at_its_start_a_scheduler_does_not_wait_long_for_a_node_that_does_not_answer(rig: Rig) -> None:
    gate = held(rig)
    link = IndexLink(rig.path, Hello(Role.SCHEDULER, engine="engine", namespace={"parts": [1000]}), print)
    assert not link.attach(0.01)
    gate.set()
    wait_until(lambda: link.receive() or link.life)
    link.close()
