"""Random workloads on vLLM's real scheduler and block pool, every byte checked in every step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtide.core.ledger import StoreEntry
from kvtide.vllm import connector
from kvtide.vllm.layout import Layout, read_layout
from kvtide.vllm.load_news import LoadNews
from kvtide.vllm.requests import Requests
from kvtide.vllm.worker_side import WorkerSide
from tests.vllm.engines import Control
from tests.vllm.world import BLOCK_TOKENS, World, chunked, full, sliding, text

LAYOUTS = {
    "full": lambda: [full()],
    "sliding": lambda: [full(), sliding(40), sliding(40)],
    "chunked": lambda: [full(), chunked(64)],
}


def drive(world: World, seed: int, steps: int) -> None:
    """Conversations that share prefixes, aborts, preemptions and resets, for a number of steps."""
    draw = random.Random(seed)
    number = 0
    while world.steps < steps:
        alive = list(world.scheduler.requests)
        if len(alive) < 10 and draw.random() < 0.5:
            conversation = draw.randrange(5)
            tokens = text(conversation, draw.randrange(1, 180))
            if draw.random() < 0.3:
                tokens += text(1000 + number, draw.randrange(1, 40))
            params: dict[str, Any] = {"skip_reading_prefix_cache": True} if draw.random() < 0.05 else {}
            world.add(f"r{number}", tokens, draw.randrange(1, 30), priority=draw.randrange(3), **params)
            number += 1
        if alive and draw.random() < 0.05:
            world.abort(draw.choice(alive))
        if draw.random() < 0.01:
            world.connector.reset_cache()
        if draw.random() < 0.005:
            world.new_weights()
        world.step()
    world.run()


def make(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, mode: str, layout: str = "full", scheduling: str = "sync"
) -> World:
    control = Control()
    control.setup["random"] = random.Random(seed)
    return World(
        path,
        groups=LAYOUTS[layout](),
        blocks=40 if layout == "full" else 72,
        host_blocks=60,
        asynchronous=scheduling in {"async", "one process"},
        one_process=scheduling == "one process",
        old_worker=scheduling == "0.24",
        control=control,
        monkeypatch=monkeypatch,
        engine_args={"scheduling_policy": "priority"} if scheduling == "priority" else None,
        mode=mode,
    )


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheduling", ["sync", "async", "one process", "0.24", "priority"])
@pytest.mark.parametrize("seed", range(2))
def test_random_workloads_read_and_store_the_right_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mode: str, layout: str, scheduling: str, seed: int
) -> None:
    world = make(tmp_path, monkeypatch, seed, mode=mode, layout=layout, scheduling=scheduling)
    drive(world, seed, steps=600)
    world.check_at_rest()
    metrics = world.manager.metrics
    assert metrics.loaded_tokens > 0
    assert metrics.stored_blocks > 0
    assert metrics.reports_unknown == metrics.reports_repeated == 0


def make_context_parallel(path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, layout: str, mode: str) -> World:
    """Two ranks that share the tokens of each block; those of a second group they both have, if there is one."""
    control = Control()
    control.setup.update(random=random.Random(seed), failure_rate=0.1)
    return World(
        path,
        groups=[full()] if layout == "sharded" else [full(), full(dcp_sharded=False)],
        blocks=24 if layout == "sharded" else 56,
        host_blocks=40 if layout == "sharded" else 80,
        context_parallel=2,
        control=control,
        monkeypatch=monkeypatch,
        mode=mode,
    )


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("layout", ["sharded", "sharded and replicated"])
def test_random_workloads_with_decode_context_parallel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, layout: str, mode: str
) -> None:
    """A block id stands for twice as many tokens; each rank copies, fails and reports for itself."""
    world = make_context_parallel(tmp_path, monkeypatch, 1, layout, mode)
    assert world.scheduler.block_size == 2 * BLOCK_TOKENS
    drive(world, 1, steps=600)
    world.check_at_rest()
    metrics = world.manager.metrics
    assert metrics.loaded_tokens > 0
    assert metrics.loaded_tokens % (2 * BLOCK_TOKENS) == 0
    assert metrics.loads_failed > 0
    assert metrics.stores_failed > 0
    moved = [engine.moved for engine in world.control.engines]
    assert len(moved) == 2
    assert all(blocks > 0 for rank in moved for blocks in rank.values())
    assert moved[0] != moved[1], "a copy that fails on one rank only has to be among them"


def is_caught(make_world: Callable[[int], World], violation: str = "holds wrong bytes") -> bool:
    """Whether one of a few worlds sees the violation: wrong bytes on the host, unless told otherwise."""

    def sees_wrong_bytes(seed: int) -> bool:
        try:
            drive(make_world(seed), seed, steps=600)
        except AssertionError as wrong:
            return violation in str(wrong)
        return False

    return any(sees_wrong_bytes(seed) for seed in range(12))


def test_f10_a_world_that_believes_the_first_of_two_ranks_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary of decode context parallel: half of a block's tokens are not stored yet."""

    def one_rank(*args: Any) -> Layout:
        layout = read_layout(*args)
        return replace(layout, geometry=replace(layout.geometry, ranks=1))

    monkeypatch.setattr(connector, "read_layout", one_rank)
    assert is_caught(lambda seed: make_context_parallel(tmp_path, monkeypatch, seed, "sharded", "eager"))


def test_a_world_whose_stores_do_not_wait_for_compute_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary of F6: some blocks that are stored are filled by the very step that stores them."""
    as_copy = StoreEntry.as_copy
    monkeypatch.setattr(StoreEntry, "as_copy", lambda self: replace(as_copy(self), filled=True))
    assert is_caught(lambda seed: make(tmp_path, monkeypatch, seed, mode="eager", layout="sliding"))


def test_a_world_that_takes_hits_of_the_same_step_for_computed_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary of F6 in vLLM: a request hits blocks that another one fills in the same step."""
    advance_one = Requests._advance_one

    def too_early(self: Any, tracked: Any, new_tokens: int) -> None:
        self._manager.advance(tracked.id, tracked.computed_tokens)
        advance_one(self, tracked, new_tokens)

    monkeypatch.setattr(Requests, "_advance_one", too_early)
    assert is_caught(lambda seed: make(tmp_path, monkeypatch, seed, mode="eager"))


def test_f7_compute_that_does_not_wait_for_the_end_of_an_announced_load_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary of loads that vLLM hears of before their last bytes have moved."""
    monkeypatch.setattr(WorkerSide, "_let_compute_wait", lambda *_: None)
    assert is_caught(lambda seed: make(tmp_path, monkeypatch, seed, mode="eager"), violation="reads a wrong token")


def test_f7_workers_that_do_not_hear_which_loads_may_be_read_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary of steps that need not wait, because they were scheduled before a load was heard of (F31)."""
    monkeypatch.setattr(LoadNews, "arrived", lambda *_: None)
    assert is_caught(lambda seed: make(tmp_path, monkeypatch, seed, mode="eager"), violation="reads a wrong token")
