"""Host memory of a node that comes and goes, on a real GPU: pinned, copied to and from, and given back each time.

PYTHONPATH=src python -m pytest tests/gpu/test_lives.py -o filterwarnings=default
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtide.copy import HostArena, LivesCopyEngine
from kvtide.copy.cuda import CopyKit, CudaCache, CudaCopyEngine, Route, tensor_regions
from kvtide.core.messages import Copy, Pool
from kvtide.node.arenas import NodeArena
from kvtide.node.mapped import MappedArena
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE

torch: Any = importlib.import_module("torch")

GIB = 1 << 30
BLOCKS, BLOCK_BYTES = 1024, 1 << 20
LIVES = 6
"""More than torch has streams for, if each life took its own."""


class Node:
    """Makes memory in each life, as a node does, and keeps none of an earlier one."""

    def __init__(self) -> None:
        self.arena: NodeArena | None = None

    def join(self, _: Pool) -> HostArena:
        self.arena = NodeArena(0, BLOCKS, BLOCK_BYTES)
        self.arena.touch(lambda: None)
        return MappedArena(self.arena.descriptor, self.arena.description, follows=True)

    def is_gone(self) -> bool:
        return False

    def drained(self) -> None:
        if self.arena is not None:
            self.arena.close()
        self.arena = None

    def close(self) -> None:
        self.drained()


def available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    (found,) = [line for line in lines if line.startswith("MemAvailable")]
    return int(found.split()[1]) << 10


def polled_until(engine: LivesCopyEngine, condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it does not happen"
        engine.poll()
        time.sleep(0.001)


@pytest.mark.parametrize("route", Route)
def test_f28_each_life_of_a_node_is_pinned_and_given_back_while_the_gpu_computes(
    route: Route, caplog: pytest.LogCaptureFixture
) -> None:
    tensor = torch.randint(0, 256, (BLOCKS, BLOCK_BYTES), dtype=torch.uint8, device="cuda")
    cache = CudaCache(tensor_regions(tensor, 0), blocks=BLOCKS)
    kit = CopyKit(cache, route=route)
    kit.warm_up().join(PATIENCE_S)
    expected, compute = tensor.clone(), torch.randn(2048, 2048, device="cuda")
    assert torch.equal(compute @ compute, compute @ compute)  # torch keeps the memory that this takes
    assert torch.equal(tensor, expected)
    torch.cuda.synchronize()
    node, device_bytes, host_bytes = Node(), torch.cuda.memory_reserved(), available_bytes()
    engine = LivesCopyEngine(node, partial(CudaCopyEngine, cache, kit=kit), print)
    everything = tuple(range(BLOCKS))
    for life in range(1, LIVES + 1):
        engine.use(Pool(life, "epoch", life))
        polled_until(engine, lambda: engine.slots_ready() == BLOCKS)
        slots = tuple(np.random.default_rng(life).permutation(BLOCKS).tolist())
        for id_, way in enumerate((STORE, LOAD)):
            product = compute @ compute
            event = torch.cuda.Event()
            event.record()
            assert engine.submit(way, Copy(id_, everything, slots, life=life), event.wait)
            assert engine.wait((id_,), PATIENCE_S)
            assert engine.poll().done == (id_,)
            if way is STORE:
                tensor.zero_()
            del product
        torch.cuda.synchronize()
        assert torch.equal(tensor, expected), f"life {life}"
        engine.use(None)
        polled_until(engine, lambda: node.arena is None)
    assert engine.close(PATIENCE_S)
    assert "may stay pinned" not in caplog.text
    assert torch.cuda.memory_reserved() - device_bytes < 64 << 20, "products of compute, and nothing of each life"
    assert available_bytes() > host_bytes - 2 * GIB, "pinned memory of earlier lives is kept"
