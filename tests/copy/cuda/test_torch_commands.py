"""What torch's streams, events and kernels become in a list of commands. Torch is not needed for that."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvtide.copy.cuda.gpu import Gap
from kvtide.copy.cuda.issuing import NO_GAPS, Gaps, Kind
from kvtide.copy.cuda.torch_commands import Kernel, TorchCommands, TorchEvent, TorchMemory, TorchStream

_NUMBERS = itertools.count(1000)


class Driver:
    def __init__(self) -> None:
        self.issued: list[int] = []

    def issue(self, words: Sequence[int], _gaps: Gaps) -> None:
        self.issued += words


class Reader(Driver):
    """Reads the arrays of the one command it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[list[int]] = []

    def issue(self, words: Sequence[int], gaps: Gaps) -> None:
        self.arrays = [list((ctypes.c_int64 * words[5]).from_address(at)) for at in words[2:5]]
        super().issue([*words[:2], *words[5:]], gaps)


class Triton:
    """A kernel that writes down with what it is launched."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, num_warps: int) -> Any:
            self.launches.append((grid, *arguments, num_warps))
            return SimpleNamespace(function=4242, metadata=SimpleNamespace(shared=64))

        return launch


class Tensor:
    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def _stream() -> TorchStream:
    return TorchStream(SimpleNamespace(cuda_stream=next(_NUMBERS), synchronize=None))


def _event() -> TorchEvent:
    names = dict.fromkeys(("query", "synchronize", "wait"))
    return TorchEvent(SimpleNamespace(cuda_event=next(_NUMBERS), record=lambda: None, **names))


def _list(driver: Any) -> tuple[TorchCommands, Triton]:
    triton = Triton()
    return TorchCommands(driver, Kernel(triton, 1024)), triton


def _addresses(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int64)


def test_nothing_is_issued_before_the_list_is_run_and_nothing_twice() -> None:
    driver = Driver()
    commands, _ = _list(driver)
    stream, other, ours = _stream(), _stream(), _event()
    commands.record(stream, ours)
    commands.wait(other, ours)
    commands.synchronize(ours)
    assert driver.issued == []
    expected = [Kind.RECORD, stream.handle, ours.handle, Kind.WAIT, other.handle, ours.handle]
    expected += [Kind.SYNCHRONIZE, ours.handle]
    for _ in range(2):
        commands.run(NO_GAPS)
        assert driver.issued == expected


@pytest.mark.parametrize("gaps", [False, True])
def test_copies_are_a_command_that_names_arrays_which_live_until_it_is_issued(gaps: bool) -> None:
    commands, _ = _list(Reader())
    stream, gap = _stream(), Gap(64, _stream(), _event(), _event())
    to = _addresses(*range(100, 130))[::-1]  # arrays that do not lie as C wants them are laid so
    commands.copy(stream, to, _addresses(*range(200, 230)), _addresses(*range(300, 330)), gap if gaps else None)
    del to
    gc.collect()
    commands.run(NO_GAPS)
    assert isinstance(commands._driver, Reader)
    assert commands._driver.arrays == [[*range(129, 99, -1)], [*range(200, 230)], [*range(300, 330)]]
    assert isinstance(gap.other, TorchStream)
    assert isinstance(gap.our_turn, TorchEvent)
    assert isinstance(gap.their_turn, TorchEvent)
    with_gaps = [64, gap.other.handle, gap.our_turn.handle, gap.their_turn.handle]
    assert commands._driver.issued == [Kind.COPY, stream.handle, 30, *(with_gaps if gaps else [0, 0, 0, 0])]


def test_a_kernel_is_compiled_once_by_a_launch_that_has_nothing_to_do() -> None:
    driver = Driver()
    commands, triton = _list(driver)
    stream, to = _stream(), Tensor(8000)
    pinned = np.arange(1500, dtype=np.int64)
    for _ in range(2):
        commands.fetch(stream, TorchMemory(None, to, 8000), pinned)
    commands.run(NO_GAPS)
    assert triton.launches == [((1, 1, 1), to, 0, 0, 1024, 4)]
    values = [8000, (pinned.ctypes.data - 8000) // 8, 1500]
    assert driver.issued == 2 * [Kind.LAUNCH, stream.handle, 4242, 2, 128, 64, 5, *values, 0, 0]
