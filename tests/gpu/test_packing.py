"""Packing on a GPU: kernels as the reference says, and engines that bring back every bit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from kvtide.copy import Finished, HostArena
from kvtide.copy.packing.trial import PackingTrial
from kvtide.core.messages import Copy
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE, MovingContract, Rig, Shape
from tests.contracts.copy_rigs import PackedSlots, in_tiles
from tests.copy.cuda.interpret_packing import sweep
from tests.copy.packing.cases import ordinary
from tests.gpu.rig import CudaRig

LARGE = Shape(blocks=400, slots=400, fragments=(16384, 8192, 2048), padding=64)


def test_the_packing_kernels_do_what_the_reference_does() -> None:
    sweep("cuda", units=8)


def test_the_packing_kernels_do_what_the_reference_does_with_a_tile_for_each_warp() -> None:
    sweep("cuda", units=4)


class PackedRig(CudaRig):
    """Blocks are packed on the host."""

    host: PackedSlots

    def __init__(self, shape: Shape, *, rows: int | None = None, **options: Any) -> None:
        self._rows = rows
        super().__init__(shape, **options)
        assert self.engine.row_pinning is not None
        assert self.engine.row_pinning.wait(PATIENCE_S)

    def read_slot(self, slot: int) -> bytes:
        return self.host.read(slot)

    def write_slot(self, slot: int, content: bytes) -> None:
        self.host.write(slot, content)

    def open_arena(self, shape: Shape, options: dict[str, Any]) -> HostArena:
        self.host = PackedSlots(shape, self._rows)
        options["unpacked"] = self.host.unpacked
        return self.host.arena

    def packing_block(self, seed: int) -> bytes:
        return ordinary(self.shape.block_bytes // 2048, seed).tobytes()


class TestContract(MovingContract):
    staging_bytes = 1 << 20

    def build(self, shape: Shape, *, max_transfers: int) -> PackedRig:
        whole = replace(in_tiles(shape), padding=16 * -(-shape.padding // 16))
        return PackedRig(whole, max_transfers=max_transfers, staging_bytes=self.staging_bytes)

    def release(self, rig: Rig) -> None:
        assert isinstance(rig, PackedRig)
        rig.host.close()

    def test_traffic_counts_the_bytes_of_copies_that_succeeded(self) -> None:
        with self.rig() as rig:
            assert isinstance(rig, PackedRig)
            rig.run(STORE, Copy(1, (0, 1), (0, 1)))
            store = rig.engine.traffic(STORE)
            # What does not pack has gone over the link twice.
            assert store.bytes == 2 * (rig.shape.block_bytes + rig.host.packing.packed_bytes)
            assert (store.transfers, store.saved_bytes, store.unpacked_blocks) == (1, 0, 2)


class TestContractInSmallBuffers(TestContract):
    staging_bytes = 1


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("share_that_packs", [1.0, 0.9, 0.0])
def test_blocks_that_pack_and_blocks_that_do_not_come_back_bit_for_bit(
    share_that_packs: float, scattered: bool
) -> None:
    rng = random.Random(0)
    rig = PackedRig(LARGE)
    half = LARGE.blocks // 2
    contents = []
    for block in range(half):
        packs = rng.random() < share_that_packs
        contents.append(rig.packing_block(block) if packs else rng.randbytes(LARGE.block_bytes))
        rig.write_block(block, contents[block])
    slots = rng.sample(range(LARGE.slots), half) if scattered else list(range(100, 100 + half))
    parts = [slice(at, at + 50) for at in range(0, half, 50)]
    for id_, part in enumerate(parts):
        assert rig.engine.submit(STORE, Copy(id_, tuple(range(half))[part], tuple(slots[part])))
    assert rig.finish(*range(len(parts))) == Finished(done=tuple(range(len(parts))))
    unfit = sum(content != rig.packing_block(block) for block, content in enumerate(contents))
    store = rig.engine.traffic(STORE)
    saved = rig.shape.block_bytes - rig.host.packing.packed_bytes
    assert (store.unpacked_blocks, store.saved_bytes) == (unfit, (half - unfit) * saved)
    padding = rig.read_padding()
    for id_, part in enumerate(parts):
        assert rig.engine.submit(LOAD, Copy(100 + id_, tuple(range(half, 2 * half))[part], tuple(slots[part])))
    ids = tuple(range(100, 100 + len(parts)))
    assert rig.finish(*ids) == Finished(done=ids)
    assert [rig.read_block(half + at) for at in range(half)] == contents
    assert rig.read_padding() == padding
    rig.release()


def test_blocks_without_a_row_are_named_and_all_others_are_kept() -> None:
    rig = PackedRig(LARGE, rows=3)
    for block in range(0, 40, 2):
        rig.write_block(block, rig.packing_block(block))
    finished = rig.run(STORE, Copy(1, tuple(range(40)), tuple(range(40))))
    assert finished.done == (1,)
    ((_, lost),) = finished.not_kept
    assert len(lost) == 17
    kept = [slot for slot in range(40) if slot not in lost]
    assert [rig.read_slot(slot) for slot in kept] == [rig.read_block(slot) for slot in kept]
    rig.release()


class TrialRig(PackedRig):
    """The first blocks decide whether to pack."""

    def open_arena(self, shape: Shape, options: dict[str, Any]) -> HostArena:
        arena = super().open_arena(shape, options)
        options["trial"] = PackingTrial(arena, self.host.unpacked)
        return arena


def test_where_nothing_packs_auto_copies_each_block_once_and_all_come_back() -> None:
    rng = random.Random(0)
    rig = TrialRig(LARGE, rows=8)
    contents = [rng.randbytes(LARGE.block_bytes) for _ in range(40)]
    for block, content in enumerate(contents):
        rig.write_block(block, content)
    assert rig.engine.slots_ready() == 8
    assert rig.run(STORE, Copy(1, tuple(range(8)), tuple(range(8)))) == Finished(done=(1,))
    ready = rig.engine.slots_ready()
    assert ready is not None
    assert ready > 40
    before = rig.engine.traffic(STORE)
    slots = (*range(ready - 30, ready), 3, 4)
    assert rig.run(STORE, Copy(2, tuple(range(8, 40)), slots)) == Finished(done=(2,))
    after = rig.engine.traffic(STORE)
    assert after.bytes - before.bytes == 32 * LARGE.block_bytes
    assert after.unpacked_blocks == 8
    back = tuple(range(40, 72))
    assert rig.run(LOAD, Copy(3, back, slots)) == Finished(done=(3,))
    assert [rig.read_block(block) for block in back] == contents[8:]
    rig.release()
