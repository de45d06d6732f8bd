"""What copying takes on a GPU is made once, however often host memory comes and goes."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest

from kvtide.copy import CopyEngine, HostArena, LivesCopyEngine
from kvtide.copy.cuda import CopyKit, CudaCache, CudaCopyEngine, CudaRegion, Route
from kvtide.core.messages import Copy, Pool
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE
from tests.copy.cuda.fake_gpu import FakeGpu

BLOCKS, BLOCK_BYTES = 6, 4096
SCATTERED = (5, 0, 3)


class Memory:
    """Host memory of a node that starts again and again. Its bytes can be seen when it is gone."""

    def __init__(self) -> None:
        self.arena = HostArena(BLOCKS, BLOCK_BYTES)

    def join(self, _: Pool) -> HostArena:
        self.arena = HostArena(BLOCKS, BLOCK_BYTES)
        return self.arena

    def is_gone(self) -> bool:
        return False

    def drained(self) -> None:
        pass

    def close(self) -> None:
        pass


def use(engine: CopyEngine, life: int) -> None:
    engine.use(Pool(life, "epoch", life))
    end_s = time.monotonic() + PATIENCE_S
    while engine.life != life or engine.slots_ready() != BLOCKS:
        assert time.monotonic() < end_s, "the life does not begin"
        engine.poll()
        time.sleep(0.001)


@pytest.mark.parametrize("route", [None, Route.STAGED, Route.DIRECT])
@pytest.mark.parametrize("forgets", [False, True])
def test_lives_of_host_memory_share_buffers_streams_and_what_was_measured(route: Route | None, forgets: bool) -> None:
    gpu = FakeGpu()
    blocks = np.random.default_rng(0).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)
    cache = CudaCache([CudaRegion(gpu.adopt(blocks), BLOCK_BYTES, BLOCK_BYTES)], blocks=BLOCKS)
    kit = CopyKit(cache, staging_bytes=2 * BLOCK_BYTES, route=route, gpu=gpu)
    made = len(gpu.allocated), len(gpu._streams)
    memory = Memory()
    engine = LivesCopyEngine(memory, partial(CudaCopyEngine, cache, kit=kit), print)
    for life in (1, 2, 3):
        use(engine, life)
        expected = blocks.copy()
        for id_, (way, ids) in enumerate(((STORE, range(BLOCKS)), (LOAD, SCATTERED))):
            if way is LOAD:
                blocks[list(ids)] = 0
            assert engine.submit(way, Copy(id_, tuple(ids), tuple(ids), life=life))
            assert engine.wait((id_,), PATIENCE_S)
            assert engine.poll().done == (id_,)
        assert (memory.arena.memory == expected).all()
        assert (blocks == expected).all()
        engine.use(None)
        while engine._life is not None:
            engine.poll()
            time.sleep(0.001)
        assert not gpu.pinned
        if forgets:  # the engine sleeps while there is no node
            engine.device_memory_goes()
            for array in gpu.allocated:
                array[:] = 0
    assert (len(gpu.allocated), len(gpu._streams)) == made
    assert engine.close(PATIENCE_S)


@pytest.mark.parametrize("fails", [None, "fetch"])
def test_the_gpu_is_proved_and_kernels_are_compiled_before_there_is_host_memory(fails: str | None) -> None:
    """Otherwise the first load of an engine that was restarted would wait for a compiler."""
    gpu = FakeGpu()
    blocks = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
    cache = CudaCache([CudaRegion(gpu.adopt(blocks), BLOCK_BYTES, BLOCK_BYTES)], blocks=BLOCKS)
    kit = CopyKit(cache, staging_bytes=2 * BLOCK_BYTES, route=Route.STAGED, gpu=gpu)
    if fails is not None:
        gpu.failing[fails] = RuntimeError("it does not compile")
    thread = kit.warm_up()
    thread.join(PATIENCE_S)
    assert gpu.calls["prove"] == 1
    assert gpu.calls["move"] == (4 if fails is None else 0), "both directions, scattered and not"
    assert not gpu.pinned
