"""Ranks that hold the same KV, on vLLM's real scheduler and layouts, every byte checked in every step (F27)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtide.copy import Direction, shared_memory
from kvtide.core import Copy
from kvtide.core.share import Share
from kvtide.errors import CopyError
from kvtide.vllm.worker_side import WorkerSide
from tests.vllm.engines import Control
from tests.vllm.test_world import drive, is_caught
from tests.vllm.world import World, latent, text

RANKS = 2


def make(path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, mode: str = "eager", **more: Any) -> World:
    control = Control()
    control.setup.update(random=random.Random(seed), failure_rate=0.1)
    return World(
        path,
        groups=[latent()],
        blocks=40,
        host_blocks=30,
        tensor_parallel=RANKS,
        control=control,
        monkeypatch=monkeypatch,
        mode=mode,
        **more,
    )


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_f27_random_workloads_on_ranks_that_write_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    world = make(tmp_path, monkeypatch, 1, mode)
    drive(world, 1, steps=600)
    world.check_at_rest()
    metrics = world.manager.metrics
    assert metrics.loaded_tokens > 0
    assert metrics.loads_failed > 0
    assert metrics.stores_failed > 0
    first, second = world.control.engines
    assert first.arena.shared
    assert first.arena.memory.nbytes == second.arena.memory.nbytes == world.side.config.host_bytes
    assert all(engine.moved[Direction.STORE] > 0 for engine in world.control.engines)


def test_f27_a_block_that_no_rank_writes_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_store = Share.of_store

    def leave_the_last(self: Share, copy: Copy) -> Copy:
        mine = of_store(self, copy)
        is_last = mine.slots[-1:] == copy.slots[-1:]
        return replace(mine, blocks=mine.blocks[:-1], slots=mine.slots[:-1]) if is_last else mine

    monkeypatch.setattr(Share, "of_store", leave_the_last)
    assert is_caught(lambda seed: make(tmp_path, monkeypatch, seed))


def test_f27_ranks_that_cannot_share_serve_with_copies_in_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(offer: shared_memory.Offer) -> int:
        raise CopyError(f"{offer.process} is out of reach")

    monkeypatch.setattr(shared_memory, "find", refuse)
    world = make(tmp_path, monkeypatch, 2)
    drive(world, 2, steps=300)
    world.check_at_rest()
    arenas = [engine.arena for engine in world.control.engines]
    assert sum(arena.memory.nbytes for arena in arenas) == world.side.config.host_bytes
    assert world.manager.metrics.loaded_tokens > 0
    assert world.manager.gauges().slots == world.side.config.slots // RANKS


def asked(world: World, call: str) -> list[int]:
    """How many blocks the tier of each rank was asked to keep or to bring."""
    sides = [worker._worker for worker in world.workers if isinstance(worker._worker, WorkerSide)]
    tiers = [side._worker.tier_stats()["disk"] for side in sides]
    return [sum(count for (name, _), count in tier.keys.items() if name == call) for tier in tiers]


def test_f27_blocks_below_the_host_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    tiers = [{"type": "disk", "path": str(folder), "size": "64MiB", "deadline_ms": 60_000}]
    world = make(tmp_path, monkeypatch, 3, tiers=tiers, min_fetch_tokens=16)
    for engine in world.control.engines:
        engine.random = None
    tokens = text(1, 160)
    world.generate("first", tokens)
    stored = world.manager.metrics.stored_blocks
    assert stored == 10
    assert sum(engine.moved[Direction.STORE] for engine in world.control.engines) == stored
    assert sum(asked(world, "put")) == stored
    assert all(asked(world, "put"))
    for number in range(12):  # until the host has given the first one up
        world.generate(f"other-{number}", text(100 + number, 160))
    world.evict_device()
    assert world.manager.metrics.fetched_blocks == 0
    assert world.generate("again", tokens) == 160 - 16
    assert world.manager.metrics.fetched_blocks == 9
    assert sum(asked(world, "get")) == 9
    for worker in world.workers:
        worker.shutdown()
