from __future__ import annotations

import random

import numpy as np
import pytest

from kvtide.copy import DeviceCache, Finished, HostArena, Region, ThreadedCopyEngine
from kvtide.copy.packed_move import PackedBlockMover
from kvtide.copy.packing.codec import Reference
from kvtide.copy.unpacked import UnpackedRows, rows_for
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE, MovingContract, Rig, Shape
from tests.contracts.copy_rigs import ArrayRig, PackedSlots, in_tiles
from tests.copy.packing.cases import SPECIAL, ordinary

SHAPE = Shape(blocks=40, slots=30, fragments=(4096, 2048, 6144), padding=32)


class PackedRig(ArrayRig):
    """Threads that pack with the reference."""

    def __init__(self, shape: Shape, *, threads: int = 1, max_transfers: int = 64, rows: int | None = None) -> None:
        rng = np.random.default_rng(0)
        self.arrays = [rng.integers(0, 256, (shape.blocks, size + shape.padding), np.uint8) for size in shape.fragments]
        regions = [
            Region(array, array.shape[1], fragment)
            for array, fragment in zip(self.arrays, shape.fragments, strict=True)
        ]
        self.host = PackedSlots(shape, rows)
        engine = ThreadedCopyEngine(
            DeviceCache(regions, blocks=shape.blocks),
            self.host.arena,
            threads=threads,
            max_transfers=max_transfers,
            unpacked=self.host.unpacked,
            codec=Reference,
        )
        super().__init__(engine, shape, self.host.arena)

    def read_slot(self, slot: int) -> bytes:
        return self.host.read(slot)

    def write_slot(self, slot: int, content: bytes) -> None:
        self.host.write(slot, content)


class PackedContract(MovingContract):
    threads = 1

    def build(self, shape: Shape, *, max_transfers: int) -> PackedRig:
        return PackedRig(in_tiles(shape), threads=self.threads, max_transfers=max_transfers)

    def release(self, rig: Rig) -> None:
        assert isinstance(rig, PackedRig)
        rig.host.close()


class TestOneThread(PackedContract):
    pass


class TestTwoThreads(PackedContract):
    threads = 2


def packing_block(rig: PackedRig, seed: int) -> bytes:
    return ordinary(rig.shape.block_bytes // 2048, seed).tobytes()


def test_blocks_that_pack_take_the_room_of_packed_blocks_and_come_back_bit_for_bit() -> None:
    rig = PackedRig(SHAPE)
    contents = [packing_block(rig, seed) for seed in range(8)]
    for block, content in enumerate(contents):
        rig.write_block(block, content)
    assert rig.run(STORE, Copy(1, tuple(range(8)), tuple(range(20, 28)))) == Finished(done=(1,))
    assert rig.host.unpacked.used == 0
    assert [rig.read_slot(slot) for slot in range(20, 28)] == contents
    padding = rig.read_padding()
    assert rig.run(LOAD, Copy(2, tuple(range(30, 38)), tuple(range(20, 28)))) == Finished(done=(2,))
    assert [rig.read_block(block) for block in range(30, 38)] == contents
    assert rig.read_padding() == padding
    store = rig.engine.traffic(STORE)
    packed = 8 * rig.host.packing.packed_bytes
    assert (store.bytes, store.saved_bytes, store.unpacked_blocks) == (packed, 8 * SHAPE.block_bytes - packed, 0)
    assert rig.engine.close(PATIENCE_S)


@pytest.mark.parametrize("name", SPECIAL)
def test_special_tiles_come_back_wherever_they_are_in_a_block(name: str) -> None:
    rig = PackedRig(SHAPE)
    tile = SPECIAL[name][0].tobytes()
    tiles = SHAPE.block_bytes // 2048
    contents = []
    for at in range(tiles):
        content = packing_block(rig, at)
        contents.append(content[: 2048 * at] + tile + content[2048 * (at + 1) :])
        rig.write_block(at, contents[at])
    rig.run(STORE, Copy(1, tuple(range(tiles)), tuple(range(tiles))))
    rig.run(LOAD, Copy(2, tuple(range(10, 10 + tiles)), tuple(range(tiles))))
    assert [rig.read_block(10 + at) for at in range(tiles)] == contents
    assert rig.host.unpacked.used == (0 if SPECIAL[name][1] else tiles)
    assert rig.engine.close(PATIENCE_S)


def test_blocks_that_do_not_pack_have_rows_as_long_as_there_are_any_and_the_others_are_named() -> None:
    rig = PackedRig(SHAPE, rows=2)
    rig.write_block(1, packing_block(rig, 1))
    finished = rig.run(STORE, Copy(7, (0, 1, 2, 3, 4), (4, 3, 2, 1, 0)))
    assert finished == Finished(done=(7,), not_kept=((7, (1, 0)),))
    assert [rig.read_slot(slot) for slot in (4, 3, 2)] == [rig.read_block(block) for block in (0, 1, 2)]
    assert rig.engine.traffic(STORE).unpacked_blocks == 4
    assert rig.engine.close(PATIENCE_S)


def test_the_row_of_a_slot_is_free_when_the_slot_is_written_to_again() -> None:
    rig = PackedRig(SHAPE, rows=1)
    assert rig.run(STORE, Copy(1, (0,), (5,))) == Finished(done=(1,))
    assert rig.run(STORE, Copy(2, (0,), (6,))).not_kept == ((2, (6,)),)
    rig.write_block(1, packing_block(rig, 1))
    assert rig.run(STORE, Copy(3, (1,), (5,))) == Finished(done=(3,))
    assert rig.run(STORE, Copy(4, (0,), (6,))) == Finished(done=(4,))
    assert (rig.read_slot(5), rig.read_slot(6)) == (rig.read_block(1), rig.read_block(0))
    assert rig.engine.close(PATIENCE_S)


def test_a_block_that_is_stored_again_to_its_slot_needs_no_second_row() -> None:
    rig = PackedRig(SHAPE, rows=1)
    for id_ in range(3):
        assert rig.run(STORE, Copy(id_, (0,), (5,))) == Finished(done=(id_,))
    assert rig.host.unpacked.used == 1
    assert rig.engine.close(PATIENCE_S)


def test_many_random_stores_and_loads_bring_back_what_was_stored_or_said_not_to_be() -> None:
    rng = random.Random(0)
    rig = PackedRig(SHAPE, rows=6, threads=2)
    held: dict[int, bytes] = {}
    for id_ in range(120):
        for block in rng.sample(range(20), 6):
            rig.write_block(block, packing_block(rig, id_) if rng.random() < 0.7 else rng.randbytes(SHAPE.block_bytes))
        slots = tuple(rng.sample(range(SHAPE.slots), rng.randint(1, 6)))
        blocks = tuple(rng.sample(range(20), len(slots)))
        finished = rig.run(STORE, Copy(2 * id_, blocks, slots))
        held.update((slot, rig.read_block(block)) for block, slot in zip(blocks, slots, strict=True))
        for _, lost in finished.not_kept:
            for slot in lost:
                del held[slot]
        known = tuple(rng.sample(sorted(held), min(6, len(held))))
        rig.run(LOAD, Copy(2 * id_ + 1, tuple(range(20, 20 + len(known))), known))
        assert [rig.read_block(20 + at) for at in range(len(known))] == [held[slot] for slot in known]
    assert rig.engine.close(PATIENCE_S)


def test_slots_that_are_not_of_the_size_of_packed_blocks_are_refused() -> None:
    array = np.zeros((4, 4096), np.uint8)
    device = DeviceCache([Region(array, 4096, 4096)], blocks=4)
    with pytest.raises(ConfigError, match="one packed block, 3104"):
        PackedBlockMover(device, HostArena(4, 4096), UnpackedRows(HostArena(1, 4096), 4))


def test_fragments_that_are_no_whole_tiles_are_refused() -> None:
    array = np.zeros((4, 4096), np.uint8)
    device = DeviceCache([Region(array, 4096, 2000)], blocks=4)
    with pytest.raises(ConfigError, match=r"packing.*multiples of 2048 bytes"):
        PackedBlockMover(device, HostArena(4, 1552), UnpackedRows(HostArena(1, 2000), 4))


@pytest.mark.parametrize(("slots", "rows"), [(1, 1), (99, 1), (100, 1), (250, 2), (100_000, 1000)])
def test_there_is_a_row_for_a_hundred_slots(slots: int, rows: int) -> None:
    assert rows_for(slots) == rows


def test_more_rows_than_slots_are_refused() -> None:
    with pytest.raises(ConfigError, match="rows"):
        UnpackedRows(HostArena(3, 64), 2)


def test_where_nothing_packs_it_is_not_tried_and_what_has_a_row_is_kept_as_it_is() -> None:
    rig = PackedRig(SHAPE, rows=18)
    for id_ in range(4):
        assert rig.run(STORE, Copy(id_, tuple(range(16)), tuple(range(16)))) == Finished(done=(id_,))
    rig.write_block(20, packing_block(rig, 0))
    assert rig.run(STORE, Copy(4, (20, 21, 22), (20, 21, 22))) == Finished(done=(4,), not_kept=((4, (22,)),))
    assert rig.host.unpacked.rows_of(np.array([20])) >= 0, "though it would pack"
    assert rig.run(LOAD, Copy(5, (28, 29, 30), (20, 21, 7))) == Finished(done=(5,))
    assert [rig.read_block(block) for block in (28, 29, 30)] == [rig.read_block(block) for block in (20, 21, 7)]
    assert rig.engine.traffic(STORE).unpacked_blocks == 64 + 3
    assert rig.engine.close(PATIENCE_S)
