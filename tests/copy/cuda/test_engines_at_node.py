"""Engines that copy at the same time, as in `benchmarks/cuda_copy.py --engines`: real processes and node, no GPU."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kvtide.copy import Direction, HostArena
from kvtide.copy.cuda import CudaCache, CudaCopyEngine, CudaRegion
from kvtide.core.messages import Copy
from tests.copy.cuda.fake_gpu import FakeGpu

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from cuda_engines import WAYS, engines_at_node

BLOCKS, BLOCK_BYTES = 8, 64 << 10
PATIENCE_S = 60.0


class FakeCopier:
    """Copies a cache that nobody else has the like of. At its end it looks whether its slots have these bytes."""

    def __init__(self, folder: Path, arena: HostArena | None, first_slot: int) -> None:
        self._folder = folder
        self._first_slot = first_slot
        self._is_at_node = arena is not None
        self._arena = HostArena(BLOCKS, BLOCK_BYTES) if arena is None else arena
        self._bytes = np.random.default_rng(os.getpid()).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)
        gpu = FakeGpu(0)
        device = self._bytes.copy()
        cache = CudaCache([CudaRegion(gpu.adopt(device), BLOCK_BYTES, BLOCK_BYTES)], blocks=BLOCKS)
        self._engine = CudaCopyEngine(cache, self._arena, gpu=gpu, staging_bytes=BLOCK_BYTES)
        assert self._engine.pinning.wait(PATIENCE_S)
        self._copies = 0

    def copy(self, way: str) -> int:
        directions = {"store": [Direction.STORE], "load": [Direction.LOAD], "both": list(Direction)}[way]
        for direction in directions:
            self._copies += 1
            slots = range(self._first_slot, self._first_slot + BLOCKS)
            assert self._engine.submit(direction, Copy(self._copies, tuple(range(BLOCKS)), tuple(slots)))
            assert self._engine.wait([self._copies], PATIENCE_S)
            assert self._engine.poll().done == (self._copies,)
        return len(directions) * BLOCKS * BLOCK_BYTES

    def close(self) -> None:
        stored = self._arena.memory[self._first_slot : self._first_slot + BLOCKS]
        if self._is_at_node and np.array_equal(stored, self._bytes):
            (self._folder / f"as stored from slot {self._first_slot} on").touch()
        assert self._engine.close(PATIENCE_S)


def test_engines_copy_through_parts_of_one_arena_and_the_ratio_to_private_memory_is_shown(tmp_path: Path) -> None:
    found = engines_at_node(partial(FakeCopier, tmp_path), 2, BLOCKS, BLOCK_BYTES, repeats=1)
    assert found.keys() == {f"{way}{what}" for way in WAYS for what in ("", "_private", "_ratio")}
    for way in WAYS:
        assert found[f"{way}_ratio"] == pytest.approx(found[way] / found[f"{way}_private"])
    assert {path.name for path in tmp_path.iterdir()} == {f"as stored from slot {first} on" for first in (0, BLOCKS)}


def broken(_arena: HostArena | None, _first_slot: int) -> FakeCopier:
    raise RuntimeError("no GPU is left")


def test_an_engine_that_does_not_start_is_no_number() -> None:
    with pytest.raises(AssertionError, match="an engine has ended"):
        engines_at_node(broken, 2, BLOCKS, BLOCK_BYTES, repeats=1)
