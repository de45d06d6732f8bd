"""A GPU is asked to copy a few blocks before others depend on it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kvtide.copy import Direction
from kvtide.copy.cuda import torch_gpu
from kvtide.copy.cuda.driver import Driver
from kvtide.copy.cuda.proof import prove
from kvtide.copy.cuda.torch_gpu import TorchGpu
from kvtide.errors import CopyError
from tests.contracts.copy_contract import PATIENCE_S
from tests.copy.cuda.fake_gpu import FakeGpu
from tests.copy.cuda.test_issuing import Library
from tests.gpu.issuing_steps import Steps, run

WORDS = {Direction.LOAD: "loaded", Direction.STORE: "stored"}


class WrongGpu(FakeGpu):
    """Its kernels are launched with a wrong number, in one direction."""

    def __init__(self, direction: Direction, argument: str, value: int) -> None:
        super().__init__()
        self._wrong, self._argument, self._value = direction, argument, value

    def mover(self, direction: Direction, *arguments: Any) -> Any:
        move = super().mover(direction, *arguments)

        def wrongly(*arguments: Any, **numbers: Any) -> None:
            if direction is self._wrong and numbers["pairs"]:
                numbers[self._argument] = self._value
            move(*arguments, **numbers)

        return wrongly


@pytest.mark.parametrize("seed", range(5))
def test_a_gpu_that_copies_as_it_should_is_proved_and_keeps_nothing(seed: int) -> None:
    gpu = FakeGpu(seed)
    prove(gpu)
    assert {"copy", "move", "fetch", "record", "wait_event", "synchronize"} <= set(gpu.calls)
    assert gpu.pinned == {}


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("argument", "value"), [("pairs", 0), ("pairs", 1), ("first", 0)])
def test_a_kernel_that_gets_wrong_numbers_is_found_out(direction: Direction, argument: str, value: int) -> None:
    with pytest.raises(CopyError, match=f"wrong bytes were {WORDS[direction]}"):
        prove(WrongGpu(direction, argument, value))


@pytest.mark.parametrize("call", ["copy", "move", "fetch", "record", "wait_event", "allocate", "pin"])
def test_a_call_that_fails_is_found_out_and_nothing_stays_pinned(call: str) -> None:
    gpu = FakeGpu()
    gpu.failing[call] = RuntimeError(f"{call} does not work")
    with pytest.raises(RuntimeError, match=f"{call} does not work"):
        prove(gpu)
    assert gpu.pinned == {}


def _gpu(monkeypatch: pytest.MonkeyPatch, proof: Callable[[object], None]) -> tuple[TorchGpu, Driver]:
    monkeypatch.setattr(torch_gpu, "prove", proof)
    gpu, driver = TorchGpu.__new__(TorchGpu), Driver(library=Library())
    gpu._driver, gpu._proving, gpu._proved = driver, threading.Lock(), False
    return gpu, driver


def test_c_that_does_not_prove_itself_gives_way_to_python_and_one_warning_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def proof(_gpu: object) -> None:
        raise CopyError("cuLaunchKernel (command 3 of 4, launch): CUDA_ERROR_INVALID_VALUE")

    gpu, driver = _gpu(monkeypatch, proof)
    lanes = [threading.Thread(target=gpu.prove) for _ in range(2)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join(PATIENCE_S)
    assert not driver.in_c
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "issued from Python" in warning.getMessage()
    assert "CUDA_ERROR_INVALID_VALUE" in warning.getMessage()


def test_c_that_proves_itself_issues_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    gpu, driver = _gpu(monkeypatch, asked.append)
    gpu.prove()
    gpu.prove()
    assert asked == [gpu]
    assert driver.in_c


@pytest.mark.parametrize("seed", range(3))
def test_the_steps_for_a_real_gpu_pass_on_one_that_works_and_name_the_call_that_does_not(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(Steps(FakeGpu(seed))) == 0
    gpu = FakeGpu(seed)
    gpu.failing["fetch"] = CopyError("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE")
    assert run(Steps(gpu)) == 1
    assert "fetch 1 number: FAILED, CopyError: cuLaunchKernel: CUDA_ERROR_INVALID_VALUE" in capsys.readouterr().out
