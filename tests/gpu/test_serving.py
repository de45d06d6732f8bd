"""What goes on beside the copies of a serving engine: pinning, and CUDA graphs."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from kvtide.copy.cuda import Route
from kvtide.core.messages import Copy
from tests.contracts.copy_contract import LOAD, PATIENCE_S, STORE, Shape
from tests.gpu.rig import CudaRig

torch: Any = importlib.import_module("torch")


def test_graphs_can_be_captured_and_replayed_while_pinning_and_copies_run() -> None:
    shape = Shape(blocks=64, slots=8192, fragments=(65_536, 65_536))  # 1 GiB to pin
    rig = CudaRig(Shape(blocks=64, slots=64, fragments=(65_536,) * 2), route=Route.STAGED)
    static = torch.zeros(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        static.add_(1)
    torch.cuda.synchronize()
    static.zero_()
    other = CudaRig(shape, wait_until_pinned=False)
    graphs = []
    for id_ in range(20):
        assert rig.engine.submit(STORE if id_ % 2 else LOAD, Copy(id_, tuple(range(64)), tuple(range(64))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(50):
                static.add_(1)
        graph.replay()
        graphs.append(graph)
    torch.cuda.synchronize()
    assert float(static.min()) == float(static.max()) == 20 * 50
    assert not rig.finish(*range(20)).failed
    assert other.engine.pinning.wait(PATIENCE_S)
    assert other.engine.pinning.problem is None
    other.release()
    rig.release()


def test_f20_slots_are_served_while_the_rest_is_being_pinned() -> None:
    shape = Shape(blocks=16, slots=16 * 1024, fragments=(65_536, 65_536))  # 2 GiB
    rig = CudaRig(shape, wait_until_pinned=False)
    while rig.engine.usable_slots < 16:
        assert rig.engine.pinning.problem is None
    early = rig.engine.usable_slots
    assert rig.run(STORE, Copy(1, tuple(range(16)), tuple(range(16)))).done == (1,)
    assert np.array_equal(rig.arena.memory[:16], rig.blocks_on_host())
    done, failed, _ = rig.run(STORE, Copy(2, (0,), (shape.slots - 1,)))
    assert done or "not pinned" in failed[0][1]
    assert rig.engine.pinning.wait(PATIENCE_S)
    assert early < rig.engine.usable_slots == shape.slots
    assert rig.run(STORE, Copy(3, (1,), (shape.slots - 1,))).done == (3,)
    assert rig.read_slot(shape.slots - 1) == rig.read_block(1)
    rig.release()
