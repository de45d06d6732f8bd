"""Packed blocks, and those that do not pack, on a real disk: all of them come back to the next engine, bit for bit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtide.copy import DeviceCache, Direction, HostArena, Region, ThreadedCopyEngine
from kvtide.copy.cuda import CudaCache, CudaCopyEngine, CudaRegion
from kvtide.copy.packing.codec import Reference
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Copy, Fetch, Lookup, Sink
from kvtide.tiers import open_stack
from kvtide.tiers.config import parse_tiers
from tests.copy.cuda.fake_gpu import FakeGpu
from tests.copy.packing.cases import ordinary
from tests.tiers.support import NAMESPACE

BLOCKS, SLOTS, ROWS, TILES = 24, 60, 8, 3
BLOCK_BYTES, PACKED_BYTES = TILES * 2048, TILES * 1552
PATIENCE_S = 20.0


class Life:
    """One engine over the disk: host memory that begins empty, and a device whose blocks are random bits."""

    def __init__(self, path: Path, kind: str, *, auto: bool = False) -> None:
        memory = np.random.default_rng(1).integers(0, 256, BLOCKS * BLOCK_BYTES + 16, np.uint8)
        self.blocks = memory[-memory.ctypes.data % 16 :][: BLOCKS * BLOCK_BYTES].reshape(BLOCKS, BLOCK_BYTES)
        self.arena = HostArena(SLOTS, PACKED_BYTES)
        self.unpacked = UnpackedRows(HostArena(ROWS, BLOCK_BYTES), SLOTS)
        self.trial = PackingTrial(self.arena, self.unpacked) if auto else None
        how: dict[str, Any] = {"unpacked": self.unpacked, "trial": self.trial}
        self.engine: ThreadedCopyEngine | CudaCopyEngine
        if kind == "threads":
            device = DeviceCache([Region(self.blocks, BLOCK_BYTES, BLOCK_BYTES)], blocks=BLOCKS)
            self.engine = ThreadedCopyEngine(device, self.arena, codec=Reference, **how)
        else:
            gpu = FakeGpu(0)
            cache = CudaCache([CudaRegion(gpu.adopt(self.blocks), BLOCK_BYTES, BLOCK_BYTES)], blocks=BLOCKS)
            self.engine = CudaCopyEngine(cache, self.arena, gpu=gpu, staging_bytes=3 * BLOCK_BYTES, **how)
            assert self.engine.row_pinning is not None
            assert self.engine.pinning.wait(PATIENCE_S)
            assert self.engine.row_pinning.wait(PATIENCE_S)
        tiers = parse_tiers([{"type": "disk", "path": str(path), "size": "4MiB", "deadline_ms": 20_000}])
        self.stack = open_stack(tiers, NAMESPACE, 0, self.arena.memory, places=self.engine.places)
        self._last_id = 0

    def copy(self, direction: Direction, blocks: range, slots: range) -> None:
        self._last_id += 1
        assert self.engine.submit(direction, Copy(self._last_id, tuple(blocks), tuple(slots)))
        assert self.engine.wait([self._last_id], PATIENCE_S)
        assert self.engine.poll().failed == ()

    def hits(self, errand: Lookup | Fetch | Sink) -> list[int]:
        self.stack.start(errand)
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            answers, _ = self.stack.poll()
            if answers:
                return list(answers[0].hits)
            self.stack.wait([errand.id], 0.1)
        raise TimeoutError

    def close(self) -> None:
        assert self.stack.close(PATIENCE_S)
        assert self.engine.close(PATIENCE_S)
        self.arena.close()
        self.unpacked.arena.close()


def names(blocks: range) -> tuple[tuple[int, bytes], ...]:
    return tuple((0, b"block %d" % block) for block in blocks)


KINDS = pytest.mark.parametrize("kind", ["threads", "cuda"])


@pytest.fixture(autouse=True)
def _rate(monkeypatch: pytest.MonkeyPatch) -> None:
    # The reference is a hundred times slower than a copy, and is not in question here.
    monkeypatch.setattr("kvtide.copy.packing.trial._RATE_SHARE_MIN", 0.0)


@KINDS
def test_blocks_that_pack_and_blocks_that_do_not_come_back_from_a_disk(kind: str, tmp_path: Path) -> None:
    some = range(12)
    first = Life(tmp_path, kind)
    for block in some[::2]:
        first.blocks[block] = ordinary(TILES, block).view(np.uint8).reshape(-1)
    stored = first.blocks.copy()
    first.copy(Direction.STORE, some, range(12))
    assert first.unpacked.used == len(some) // 2
    assert first.hits(Sink(100, names(some), tuple(some))) == list(some)
    first.close()

    second = Life(tmp_path, kind)
    assert second.hits(Lookup(100, names(some))) == list(some)
    assert second.hits(Fetch(101, names(some), tuple(range(20, 32)))) == list(some)
    assert second.unpacked.used == len(some) // 2
    second.blocks[:] = 0
    second.copy(Direction.LOAD, some, range(20, 32))
    assert np.array_equal(second.blocks[:12], stored[:12])
    second.close()


@KINDS
def test_where_nothing_packs_auto_keeps_blocks_as_they_are_and_so_does_a_disk(kind: str, tmp_path: Path) -> None:
    first = Life(tmp_path, kind, auto=True)
    stored = first.blocks.copy()
    first.copy(Direction.STORE, range(ROWS), range(ROWS))
    assert first.trial is not None
    assert first.trial.is_plain
    last = first.engine.slots_ready()
    assert last is not None
    beyond = range(last - BLOCKS + ROWS, last)
    first.copy(Direction.STORE, range(ROWS, BLOCKS), beyond)
    where = (*range(ROWS), *beyond)
    assert first.hits(Sink(100, names(range(BLOCKS)), where)) == list(range(BLOCKS))
    first.close()

    second = Life(tmp_path, kind, auto=True)
    assert second.trial is not None
    assert second.hits(Fetch(100, names(range(ROWS)), tuple(range(ROWS)))) == list(range(ROWS))
    assert second.trial.is_plain, "what comes back shows it as well as what is stored"
    assert second.hits(Fetch(101, names(range(ROWS, BLOCKS)), tuple(beyond))) == list(range(BLOCKS - ROWS))
    second.blocks[:] = 0
    second.copy(Direction.LOAD, range(ROWS), range(ROWS))
    second.copy(Direction.LOAD, range(ROWS, BLOCKS), beyond)
    assert np.array_equal(second.blocks, stored)
    second.close()


@KINDS
def test_packed_blocks_on_a_disk_show_that_blocks_pack_before_any_is_stored(kind: str, tmp_path: Path) -> None:
    first = Life(tmp_path, kind)
    for block in range(ROWS):
        first.blocks[block] = ordinary(TILES, block).view(np.uint8).reshape(-1)
    first.copy(Direction.STORE, range(ROWS), range(ROWS))
    assert first.hits(Sink(100, names(range(ROWS)), tuple(range(ROWS)))) == list(range(ROWS))
    first.close()

    second = Life(tmp_path, kind, auto=True)
    assert second.engine.slots_ready() == ROWS
    assert second.hits(Fetch(100, names(range(ROWS)), tuple(range(ROWS)))) == list(range(ROWS))
    assert second.engine.slots_ready() == SLOTS
    second.close()
