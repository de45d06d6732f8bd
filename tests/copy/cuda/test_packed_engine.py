from __future__ import annotations

import ctypes
import gc
import os
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from kvtide.copy import Finished, HostArena, shared_memory
from kvtide.copy.cuda import CudaCache, CudaCopyEngine, CudaRegion, Route, pinning
from kvtide.copy.packing.blocks import whole_tiles_bytes
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.shared_arena import SharedArena, front_bytes
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE, MovingContract, Rig, Shape
from tests.contracts.copy_rigs import ArrayRig, PackedSlots, in_tiles
from tests.copy.cuda.fake_gpu import FakeGpu
from tests.copy.packing.cases import ordinary
from tests.node.support import wait_until

SHAPE = Shape(blocks=32, slots=32, fragments=(4096, 2048), padding=16)


class PackedRig(ArrayRig):
    """An engine that packs, on a GPU that runs its streams in an order of the seed's choice."""

    engine: CudaCopyEngine

    def __init__(
        self, shape: Shape, *, seed: int = 0, max_transfers: int = 64, rows: int | None = None, **options: Any
    ) -> None:
        self.gpu = FakeGpu(seed)
        rng = np.random.default_rng(seed)
        self.arrays = []
        for fragment in shape.fragments:
            memory = rng.integers(0, 256, shape.blocks * (fragment + shape.padding) + 16, np.uint8)
            aligned = memory[-memory.ctypes.data % 16 :][: shape.blocks * (fragment + shape.padding)]
            self.arrays.append(aligned.reshape(shape.blocks, -1))
        regions = [
            CudaRegion(self.gpu.adopt(array), array.shape[1], fragment)
            for array, fragment in zip(self.arrays, shape.fragments, strict=True)
        ]
        self.host = PackedSlots(shape, rows)
        staged: dict[str, Any] = {
            "route": Route.DIRECT,  # which there is not, for packed blocks
            "staging_bytes": 3 * shape.block_bytes,
            "piece_bytes": 2 << 20,
        }
        engine = CudaCopyEngine(
            CudaCache(regions, blocks=shape.blocks),
            self.host.arena,
            gpu=self.gpu,
            max_transfers=max_transfers,
            unpacked=self.host.unpacked,
            **(staged | options),
        )
        super().__init__(engine, shape, self.host.arena)
        assert engine.pinning.wait(PATIENCE_S)
        assert engine.row_pinning is not None
        assert engine.row_pinning.wait(PATIENCE_S)

    def read_slot(self, slot: int) -> bytes:
        return self.host.read(slot)

    def write_slot(self, slot: int, content: bytes) -> None:
        self.host.write(slot, content)

    def packing_block(self, seed: int) -> bytes:
        return ordinary(self.shape.block_bytes // 2048, seed).tobytes()


class TestContract(MovingContract):
    def build(self, shape: Shape, *, max_transfers: int) -> PackedRig:
        padding = 16 * -(-shape.padding // 16)
        whole = Shape(shape.blocks, shape.slots, in_tiles(shape).fragments, padding)
        return PackedRig(whole, max_transfers=max_transfers)

    def release(self, rig: Rig) -> None:
        assert isinstance(rig, PackedRig)
        assert not rig.gpu.pinned
        rig.host.close()

    def test_traffic_counts_the_bytes_of_copies_that_succeeded(self) -> None:
        with self.rig() as rig:
            rig.run(STORE, Copy(1, (0, 1), (0, 1)))
            rig.run(STORE, Copy(3, (-1,), (0,)))
            store = rig.engine.traffic(STORE)
            # What does not pack has gone over the link twice.
            assert isinstance(rig, PackedRig)
            assert store.transfers == 1
            assert store.bytes == 2 * (rig.shape.block_bytes + rig.host.packing.packed_bytes)
            assert (store.saved_bytes, store.unpacked_blocks) == (0, 2)
            assert store.seconds.count == 1


@pytest.mark.parametrize("seed", range(12))
def test_blocks_that_pack_and_blocks_that_do_not_come_back_bit_for_bit(seed: int) -> None:
    rng = random.Random(seed)
    rig = PackedRig(SHAPE, seed=seed)
    for block in range(16):
        if rng.random() < 0.6:
            rig.write_block(block, rig.packing_block(block))
    contents = [rig.read_block(block) for block in range(16)]
    slots = rng.sample(range(SHAPE.slots), 16) if seed % 2 else list(range(8, 24))
    assert rig.engine.submit(STORE, Copy(1, tuple(range(8)), tuple(slots[:8])))
    assert rig.engine.submit(STORE, Copy(2, tuple(range(8, 16)), tuple(slots[8:])))
    assert rig.finish(1, 2).failed == ()
    assert [rig.read_slot(slot) for slot in slots] == contents
    padding = rig.read_padding()
    assert rig.engine.submit(LOAD, Copy(3, tuple(range(16, 24)), tuple(slots[:8])))
    assert rig.engine.submit(LOAD, Copy(4, tuple(range(24, 32)), tuple(slots[8:])))
    assert rig.finish(3, 4).failed == ()
    assert [rig.read_block(16 + at) for at in range(16)] == contents
    assert rig.read_padding() == padding
    assert rig.engine.close(PATIENCE_S)


def test_packed_blocks_are_all_that_goes_over_the_link_where_all_pack() -> None:
    rig = PackedRig(SHAPE)
    for block in range(4):
        rig.write_block(block, rig.packing_block(block))
    assert rig.run(STORE, Copy(1, (0, 1, 2, 3), (4, 5, 6, 7))) == Finished(done=(1,))
    assert rig.run(LOAD, Copy(2, (4, 5), (4, 5))) == Finished(done=(2,))
    packed, less = rig.host.packing.packed_bytes, SHAPE.block_bytes - rig.host.packing.packed_bytes
    store, load = rig.engine.traffic(STORE), rig.engine.traffic(LOAD)
    assert (store.bytes, store.saved_bytes, store.unpacked_blocks) == (4 * packed, 4 * less, 0)
    assert (load.bytes, load.saved_bytes) == (2 * packed, 2 * less)
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize("seed", range(6))
def test_blocks_without_a_row_are_named_and_rows_come_back_when_their_slots_are_written_to(seed: int) -> None:
    rig = PackedRig(SHAPE, seed=seed, rows=2)
    rig.write_block(1, rig.packing_block(1))
    finished = rig.run(STORE, Copy(7, (0, 1, 2, 3, 4), (9, 8, 7, 6, 5)))
    assert finished == Finished(done=(7,), not_kept=((7, (7, 9)),)), "rows are given in the order of slots"
    assert rig.host.unpacked.used == 2
    assert [rig.read_slot(slot) for slot in (8, 6, 5)] == [rig.read_block(block) for block in (1, 3, 4)]
    rig.write_block(3, rig.packing_block(3))
    assert rig.run(STORE, Copy(8, (3,), (6,))) == Finished(done=(8,))
    assert rig.run(STORE, Copy(9, (0,), (9,))) == Finished(done=(9,))
    assert (rig.read_slot(6), rig.read_slot(9)) == (rig.read_block(3), rig.read_block(0))
    assert rig.engine.close(PATIENCE_S)


def test_rows_that_are_not_pinned_yet_are_not_used() -> None:
    rig = PackedRig(SHAPE)
    assert rig.engine.row_pinning is not None
    with patch.object(rig.engine.row_pinning, "pinned_bytes", SHAPE.block_bytes):
        assert rig.run(STORE, Copy(1, (0, 1, 2), (4, 5, 6))) == Finished(done=(1,), not_kept=((1, (5, 6)),))
    assert rig.run(STORE, Copy(2, (1, 2), (5, 6))) == Finished(done=(2,))
    assert rig.engine.close(PATIENCE_S)


def test_without_any_row_packed_blocks_are_kept_alone() -> None:
    rig = PackedRig(SHAPE, rows=0)
    rig.write_block(1, rig.packing_block(1))
    assert rig.run(STORE, Copy(1, (0, 1), (9, 8))) == Finished(done=(1,), not_kept=((1, (9,)),))
    assert rig.run(LOAD, Copy(2, (5,), (8,))) == Finished(done=(2,))
    assert rig.read_block(5) == rig.read_block(1)
    assert rig.engine.traffic(STORE).bytes == 2 * rig.host.packing.packed_bytes, "nothing goes over the link twice"
    assert rig.engine.close(PATIENCE_S)


def test_in_memory_that_others_use_too_no_slot_is_ready_before_all_rows_are_pinned() -> None:
    """Somebody else may have put a block in any of them."""
    offer = shared_memory.make(front_bytes(4, 2048) + 4 * 1552)
    arena = SharedArena(4, 1552, row_bytes=2048, file=offer.descriptor)
    memory, gpu = np.zeros((4, 2048), np.uint8), FakeGpu()
    cache = CudaCache([CudaRegion(gpu.adopt(memory), 2048, 2048)], blocks=4)
    engine = CudaCopyEngine(cache, arena, gpu=gpu, unpacked=arena.unpacked)
    assert engine.row_pinning is not None
    assert engine.pinning.wait(PATIENCE_S)
    assert engine.row_pinning.wait(PATIENCE_S)
    assert engine.slots_ready() == 4
    with patch.object(engine.row_pinning, "pinned_bytes", 2047):
        assert engine.slots_ready() == 0
    assert engine.close(PATIENCE_S)
    arena.close()
    os.close(offer.descriptor)


def test_memory_that_others_use_too_is_given_back_as_soon_as_the_engine_is_closed() -> None:
    """Not when Python looks for garbage next: a node may have died, and the next one needs the memory."""
    offer = shared_memory.make(front_bytes(4, 2048) + 4 * 1552)
    before = mappings()
    arena = SharedArena(4, 1552, row_bytes=2048, file=offer.descriptor)
    memory, gpu = np.zeros((4, 2048), np.uint8), FakeGpu()
    cache = CudaCache([CudaRegion(gpu.adopt(memory), 2048, 2048)], blocks=4)
    engine: CudaCopyEngine | None = CudaCopyEngine(cache, arena, gpu=gpu, unpacked=arena.unpacked)
    assert engine is not None
    assert mappings() == before + 2
    gc.disable()
    try:
        assert engine.close(PATIENCE_S)
        engine = None
        arena.close()
        assert mappings() == before
    finally:
        gc.enable()
    os.close(offer.descriptor)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:kvtide")


def test_a_second_part_that_fails_fails_the_store() -> None:
    rig = PackedRig(SHAPE)
    assert rig.run(STORE, Copy(1, (0,), (0,))) == Finished(done=(1,))
    with patch.object(rig.engine._lanes[STORE], "issue_rows", side_effect=RuntimeError("out of luck")):
        done, failed, not_kept = rig.run(STORE, Copy(2, (1,), (1,)))
    assert (done, [id_ for id_, _ in failed], not_kept) == ((), [2], ())
    assert rig.run(STORE, Copy(3, (1,), (1,))) == Finished(done=(3,))
    assert rig.read_slot(1) == rig.read_block(1)
    assert rig.engine.close(PATIENCE_S)


def test_tables_come_back_when_device_memory_was_away() -> None:
    rig = PackedRig(SHAPE)
    rig.write_block(0, rig.packing_block(0))
    rig.engine.device_memory_goes()
    for lane in rig.engine._lanes.values():
        for table in lane.memory.tables:
            ctypes.memset(table.device.address, 0xEE, table.on_host.nbytes)
    assert rig.run(STORE, Copy(1, (0, 1), (0, 1))) == Finished(done=(1,))
    assert rig.run(LOAD, Copy(2, (2, 3), (0, 1))) == Finished(done=(2,))
    assert [rig.read_block(2), rig.read_block(3)] == [rig.read_block(0), rig.read_block(1)]
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize(
    ("region", "slot_bytes", "why"),
    [((4096, 4096), 4096, "one packed block, 3104"), ((4096, 2064), 1552, "2048"), ((4104, 4096), 3104, "16 bytes")],
)
def test_what_cannot_be_packed_is_refused(region: tuple[int, int], slot_bytes: int, why: str) -> None:
    cache = CudaCache([CudaRegion(1 << 20, *region)], blocks=4)
    rows = UnpackedRows(HostArena(1, cache.block_bytes), 4)
    with pytest.raises(ConfigError, match=why):
        CudaCopyEngine(cache, HostArena(4, slot_bytes), gpu=FakeGpu(), unpacked=rows)


def test_where_nothing_packs_blocks_go_over_the_link_once_as_they_are_and_not_at_all_without_a_row() -> None:
    rig = PackedRig(SHAPE, rows=18)
    for id_ in range(4):
        assert len(rig.run(STORE, Copy(id_, tuple(range(16)), tuple(range(16)))).done) == 1
    before = rig.engine.traffic(STORE)
    assert before.bytes == 64 * (rig.host.packing.packed_bytes + SHAPE.block_bytes), "twice, as long as it was tried"
    assert rig.run(STORE, Copy(4, (20, 21, 22), (20, 21, 22))) == Finished(done=(4,), not_kept=((4, (22,)),))
    traffic = rig.engine.traffic(STORE)
    assert traffic.bytes - before.bytes == 2 * SHAPE.block_bytes
    assert (traffic.unpacked_blocks - before.unpacked_blocks, traffic.saved_bytes) == (3, 0)
    assert rig.run(LOAD, Copy(5, (28, 29, 30), (20, 21, 7))) == Finished(done=(5,))
    assert [rig.read_block(block) for block in (28, 29, 30)] == [rig.read_block(block) for block in (20, 21, 7)]
    assert rig.engine.close(PATIENCE_S)


def test_f20_slots_can_be_used_while_the_serving_engine_starts_however_many_rows_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until it is decided whether to pack, no slot can be used before all rows are pinned."""
    monkeypatch.setattr(pinning, "FIRST_BYTES", 4 << 20)
    block_bytes, slots, rows = 256 << 10, 3200, 32
    memory = np.zeros((4, block_bytes), np.uint8)
    gpu = FakeGpu()
    cache = CudaCache([CudaRegion(gpu.adopt(memory), block_bytes, block_bytes)], blocks=4)
    arena = HostArena(slots, whole_tiles_bytes([block_bytes]))
    unpacked = UnpackedRows(HostArena(rows, block_bytes), slots)
    assert unpacked.arena.memory.nbytes > pinning.FIRST_BYTES
    how: dict[str, Any] = {"unpacked": unpacked, "trial": PackingTrial(arena, unpacked), "starting": True}
    engine = CudaCopyEngine(cache, arena, gpu=gpu, piece_bytes=2 << 20, **how)
    wait_until(lambda: engine.usable_slots > 0 and engine.pinning.pinned_bytes == pinning.FIRST_BYTES)
    assert engine.close(PATIENCE_S)
