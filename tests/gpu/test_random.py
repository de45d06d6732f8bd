from __future__ import annotations

import random

import numpy as np
import pytest

from kvtide.copy.cuda import Route
from kvtide.core.messages import Copy
from tests.contracts.copy_contract import LOAD, STORE, Shape
from tests.gpu.rig import CudaRig


def _shape(rng: random.Random) -> Shape:
    unit = rng.choice([1, 2, 8, 16, 16, 512])
    fragments = tuple(unit * rng.randint(1, 40_000 // unit) for _ in range(rng.randint(1, 12)))
    return Shape(rng.randint(20, 300), rng.randint(20, 300), fragments, padding=unit * rng.randint(0, 3))


def _cuts(rng: random.Random, ids: list[int], sizes: list[int]) -> list[tuple[int, ...]]:
    """Cut some ids into lists, so that all transfers may run at a time."""
    if rng.random() < 0.5:
        rng.shuffle(ids)
    cuts = []
    for size in sizes:
        cuts.append(tuple(ids[:size]))
        del ids[:size]
    return cuts


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_geometry_all_bytes_arrive_while_both_directions_run(seed: int) -> None:
    rng = random.Random(seed)
    shape = _shape(rng)
    rig = CudaRig(
        shape,
        route=rng.choice([Route.STAGED, Route.STAGED, Route.DIRECT]),
        staging_bytes=rng.choice([1, 1 << 18, 8 << 20]),
        staging_buffers=rng.choice([2, 3]),
        piece_bytes=2 << 20,
    )
    rig.engine.share(compute=seed % 2 == 0)
    rig.arena.memory[:] = np.random.default_rng(seed).integers(0, 256, rig.arena.memory.shape, np.uint8)
    for round_ in range(3):
        blocks, slots = rig.blocks_on_host(), rig.arena.memory.copy()
        sizes = [rng.randint(0, min(shape.blocks, shape.slots) // 6) for _ in range(6)]
        block_cuts = _cuts(rng, list(range(shape.blocks)), sizes)
        slot_cuts = _cuts(rng, list(range(shape.slots)), sizes)
        for i, (some_blocks, some_slots) in enumerate(zip(block_cuts, slot_cuts, strict=True)):
            direction = rng.choice([STORE, LOAD])
            assert rig.engine.submit(direction, Copy(10 * round_ + i, some_blocks, some_slots))
            if direction is STORE:
                slots[list(some_slots)] = blocks[list(some_blocks)]
            else:
                blocks[list(some_blocks)] = slots[list(some_slots)]
        assert not rig.finish(*range(10 * round_, 10 * round_ + 6)).failed
        assert np.array_equal(rig.arena.memory, slots)
        assert np.array_equal(rig.blocks_on_host(), blocks)
    rig.release()
