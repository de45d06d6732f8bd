from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from kvtide.copy import Direction
from kvtide.copy.cuda import Route
from kvtide.copy.cuda.torch_gpu import TorchGpu
from kvtide.core.messages import Copy
from tests.contracts.copy_contract import STORE, Shape
from tests.gpu.rig import CudaRig


class FaultyGpu(TorchGpu):
    """Hands nonsense to the driver when it is told to."""

    bad_copy = False
    bad_launch = False
    pin_calls_left = 1 << 30

    def prove(self) -> None:
        """Do nothing: the faults are for the engine."""

    def commands(self) -> Any:
        commands: Any = super().commands()
        copy = commands.copy

        def sometimes(stream: Any, to: Any, source: Any, sizes: Any, gap: Any = None) -> None:
            if self.bad_copy:
                self.bad_copy = False
                sizes = np.full_like(sizes, 1 << 50)
            copy(stream, to, source, sizes, gap)

        commands.copy = sometimes
        return commands

    def mover(self, *arguments: Any) -> Any:
        move = super().mover(*arguments)

        def sometimes(*arguments: Any, **options: Any) -> None:
            if self.bad_launch:
                self.bad_launch = False
                raise RuntimeError("Triton Error [CUDA]: out of resources")
            move(*arguments, **options)

        return sometimes

    def pin(self, address: int, nbytes: int) -> None:
        self.pin_calls_left -= 1
        super().pin(address if self.pin_calls_left >= 0 else 4096, nbytes)


@pytest.mark.parametrize(
    ("fault", "route"),
    # Direct copies launch nothing.
    [("bad_copy", Route.STAGED), ("bad_copy", Route.DIRECT), ("bad_launch", Route.STAGED)],
)
@pytest.mark.parametrize("direction", Direction)
def test_f15_a_call_that_the_driver_refuses_is_a_failed_transfer(
    fault: str, direction: Direction, route: Route
) -> None:
    gpu = FaultyGpu()
    rig = CudaRig(Shape(blocks=64, slots=64), gpu=gpu, route=route, staging_bytes=800)
    everything = tuple(range(64))
    for way in Direction:
        assert rig.run(way, Copy(0, (0,), (0,))).done == (0,)
    setattr(gpu, fault, True)
    done, failed, _ = rig.run(direction, Copy(1, everything, everything))
    assert (done, [id_ for id_, why in failed if why]) == ((), [1])
    if fault == "bad_copy":
        assert "CUDA_ERROR_" in failed[0][1]
    assert rig.engine.lost is None
    assert rig.run(STORE, Copy(2, everything, everything)).done == (2,)
    assert np.array_equal(rig.arena.memory, rig.blocks_on_host())
    rig.release()


def test_memory_that_cannot_be_registered_leaves_the_tier_at_what_could() -> None:
    gpu = FaultyGpu()
    gpu.pin_calls_left = 3
    rig = CudaRig(Shape(blocks=8, slots=64, fragments=(131_072,)), gpu=gpu, piece_bytes=2 << 20)
    assert rig.engine.usable_slots == 3 * 16
    assert "cuMemHostRegister" in str(rig.engine.pinning.problem)
    assert rig.run(STORE, Copy(1, (3,), (47,))).done == (1,)
    assert rig.read_slot(47) == rig.read_block(3)
    rig.release()


def test_a_lost_device_is_reported_once_and_nothing_hangs() -> None:
    """A real illegal access, in a process of its own: nothing works on the device after it."""
    program = """
        import logging, torch
        logging.basicConfig(level=logging.ERROR, format="LOG %(message)s")
        from kvtide.core.messages import Copy
        from tests.contracts.copy_contract import STORE, LOAD, Shape
        from tests.gpu.rig import CudaRig
        rig = CudaRig(Shape(blocks=64, slots=64, fragments=(65536,)))
        event = torch.cuda.Event()
        try:
            torch.zeros(4, device="cuda")[torch.full((4,), 1 << 40, device="cuda")].sum()
            event.record()
        except Exception:
            pass
        taken = [rig.engine.submit(way, Copy(i, (i,), (i,)), event.wait) for i, way in enumerate((STORE, LOAD) * 3)]
        ids = [i for i, yes in enumerate(taken) if yes]
        assert rig.engine.wait(ids, 30), "hangs"
        done, failed, _ = rig.engine.poll()
        assert not done and sorted(i for i, _ in failed) == ids, (done, failed)
        assert rig.engine.lost, failed
        assert not rig.engine.submit(STORE, Copy(9, (0,), (0,)))
        assert rig.engine.close(30)
        print("LOST", rig.engine.lost.splitlines()[0])
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    result = subprocess.run(command, timeout=120, check=False, capture_output=True, text=True)  # noqa: S603
    assert result.returncode == 0, result.stdout + result.stderr
    assert "LOST the GPU is lost" in result.stdout
    assert result.stderr.count("LOG ") == 1
