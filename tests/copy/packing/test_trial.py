"""Whether to pack is decided by the first blocks, and whatever is decided, nothing that was stored is lost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kvtide.copy import DeviceCache, Finished, HostArena, Region, ThreadedCopyEngine
from kvtide.copy.cuda import CudaCache, CudaCopyEngine, CudaRegion
from kvtide.copy.packing.codec import Reference
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Copy
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE, Shape
from tests.contracts.copy_rigs import ArrayRig
from tests.copy.cuda.fake_gpu import FakeGpu
from tests.copy.packing.cases import ordinary

SHAPE = Shape(blocks=64, slots=300, fragments=(4096, 2048))
PACKED_BYTES = 3 * 1552
FIRST = 8


class TrialRig(ArrayRig):
    def __init__(self, kind: str, seed: int = 0) -> None:
        size = SHAPE.blocks * SHAPE.block_bytes
        memory = np.random.default_rng(seed).integers(0, 256, size + 16, np.uint8)
        memory = memory[-memory.ctypes.data % 16 :][:size]
        keys, values = memory[: SHAPE.blocks * 4096], memory[SHAPE.blocks * 4096 :]
        self.arrays = [keys.reshape(-1, 4096), values.reshape(-1, 2048)]
        arena = HostArena(SHAPE.slots, PACKED_BYTES)
        self.unpacked = UnpackedRows(HostArena(FIRST, SHAPE.block_bytes), SHAPE.slots)
        self.told: list[str] = []
        self.trial = PackingTrial(arena, self.unpacked, self.told.append)
        engine: ThreadedCopyEngine | CudaCopyEngine
        if kind == "threads":
            regions = [Region(array, array.shape[1], array.shape[1]) for array in self.arrays]
            device = DeviceCache(regions, blocks=SHAPE.blocks)
            how: dict[str, Any] = {"unpacked": self.unpacked, "codec": Reference, "trial": self.trial}
            engine = ThreadedCopyEngine(device, arena, **how)
        else:
            gpu = FakeGpu(seed)
            cuda = [CudaRegion(gpu.adopt(array), array.shape[1], array.shape[1]) for array in self.arrays]
            cache = CudaCache(cuda, blocks=SHAPE.blocks)
            how = {"gpu": gpu, "unpacked": self.unpacked, "trial": self.trial, "piece_bytes": 2 << 20}
            engine = CudaCopyEngine(cache, arena, staging_bytes=3 * SHAPE.block_bytes, **how)
            assert engine.pinning.wait(PATIENCE_S)
            assert engine.row_pinning is not None
            assert engine.row_pinning.wait(PATIENCE_S)
        super().__init__(engine, SHAPE, arena)

    def let_pack(self, blocks: range) -> None:
        for block in blocks:
            self.write_block(block, ordinary(3, block).tobytes())


@pytest.fixture(autouse=True)
def _rate(monkeypatch: pytest.MonkeyPatch) -> None:
    # The reference is a hundred times slower than a copy, and is not in question here.
    monkeypatch.setattr("kvtide.copy.packing.trial._RATE_SHARE_MIN", 0.0)


KINDS = pytest.mark.parametrize("kind", ["threads", "cuda"])


@KINDS
def test_before_it_is_decided_there_are_as_many_slots_as_rows(kind: str) -> None:
    rig = TrialRig(kind)
    assert rig.engine.slots_ready() == FIRST
    rig.let_pack(range(4))
    assert rig.run(STORE, Copy(1, (0, 1, 2, 3), (0, 1, 2, 3))) == Finished(done=(1,))
    assert (rig.engine.slots_ready(), rig.trial.decision, rig.told) == (FIRST, None, [])
    assert rig.engine.close(PATIENCE_S)


@KINDS
def test_blocks_that_pack_make_room_for_as_many_packed_ones(kind: str) -> None:
    rig = TrialRig(kind)
    rig.let_pack(range(FIRST))
    assert rig.run(STORE, Copy(1, tuple(range(FIRST)), tuple(range(FIRST)))) == Finished(done=(1,))
    assert rig.engine.slots_ready() == SHAPE.slots
    (line,) = rig.told
    assert line.startswith("on: of the first 8 blocks 0 do not pack, and there is room for 1.2")
    last = (SHAPE.slots - 1, 3)
    assert rig.run(STORE, Copy(2, (0, 1), last)) == Finished(done=(2,))
    assert rig.run(LOAD, Copy(3, (10, 11), last)) == Finished(done=(3,))
    assert [rig.read_block(10), rig.read_block(11)] == [rig.read_block(0), rig.read_block(1)]
    assert rig.engine.close(PATIENCE_S)


@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_blocks_that_do_not_pack_are_kept_as_they_are_from_then_on_and_nothing_is_lost(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    rig = TrialRig(kind, seed)
    rig.let_pack(range(3))
    held: dict[int, bytes] = {}
    moved_blocks = 0

    def store(id_: int, blocks: list[int], slots: list[int]) -> None:
        assert rig.run(STORE, Copy(id_, tuple(blocks), tuple(slots))) == Finished(done=(id_,))
        held.update((slot, rig.read_block(block)) for block, slot in zip(blocks, slots, strict=True))

    store(1, list(range(FIRST)), list(range(FIRST)))
    ready = rig.engine.slots_ready()
    assert ready == FIRST + (SHAPE.slots - FIRST) * PACKED_BYTES // SHAPE.block_bytes
    assert rig.told == ["off: of the first 8 blocks 5 do not pack"]
    for id_ in range(2, 30):
        count = rng.randint(1, 12)
        blocks, slots = rng.sample(range(32), count), rng.sample(range(ready), count)
        if rng.random() < 0.5:
            slots = list(range(slots[0] % (ready - 12), slots[0] % (ready - 12) + count))
        store(2 * id_, blocks, slots)
        moved_blocks += count
        known = rng.sample(sorted(held), min(12, len(held)))
        rig.run(LOAD, Copy(2 * id_ + 1, tuple(range(40, 40 + len(known))), tuple(known)))
        assert [rig.read_block(40 + at) for at in range(len(known))] == [held[slot] for slot in known]
    traffic = rig.engine.traffic(STORE)
    assert traffic.unpacked_blocks == 5, "nobody has tried to pack since"
    first = (FIRST if kind == "cuda" else 3) * PACKED_BYTES + 5 * SHAPE.block_bytes
    assert traffic.bytes == first + moved_blocks * SHAPE.block_bytes, "and each block was copied once, as it is"
    assert rig.engine.close(PATIENCE_S)


def test_a_machine_that_packs_the_first_blocks_slowly_all_together_does_not_pack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvtide.copy.packing.trial._RATE_SHARE_MIN", 0.25)
    arena = HostArena(SHAPE.slots, PACKED_BYTES)
    trial = PackingTrial(arena, UnpackedRows(HostArena(FIRST, SHAPE.block_bytes), SHAPE.slots))
    trial.seen(1, 0, copying_s=0.05, packing_s=0.01)
    trial.seen(FIRST - 2, 0, copying_s=0.05, packing_s=0.99)
    trial.seen(1, 0)
    assert trial.decision is not None
    assert trial.decision.why == "off: this machine packs at 10% of the rate at which it copies"
    trial.seen(FIRST, 0, copying_s=9.0, packing_s=1.0)
    assert trial.is_plain, "it is decided once"


@pytest.mark.parametrize("unfit", [0, 1, 2, 64])
def test_it_is_decided_by_64_blocks_and_more_than_a_fiftieth_that_do_not_pack_is_too_much(unfit: int) -> None:
    arena = HostArena(100 * 80, PACKED_BYTES)
    trial = PackingTrial(arena, UnpackedRows(HostArena(80, SHAPE.block_bytes), 100 * 80))
    trial.seen(63, 0)
    assert trial.decision is None
    trial = PackingTrial(arena, UnpackedRows(HostArena(80, SHAPE.block_bytes), 100 * 80))
    trial.seen(64, unfit)
    assert trial.is_plain == (unfit > 1)


def test_where_all_slots_are_first_ones_there_is_nothing_beyond_them() -> None:
    arena = HostArena(1, PACKED_BYTES)
    trial = PackingTrial(arena, UnpackedRows(HostArena(1, SHAPE.block_bytes), 1))
    trial.seen(1, 1)
    assert (trial.slots(), len(trial.plain_memory())) == (1, 0)
