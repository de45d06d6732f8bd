"""What torch's streams, events and kernels become in a list of commands. Torch is not needed for that."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvtide.copy.cuda.issuing import NO_GAPS, Gaps, Kind
from kvtide.copy.cuda.torch_commands import Kernel, TorchCommands, TorchEvent, TorchMemory, TorchStream

_NUMBERS = itertools.count(1000)


class Driver:
    def __init__(self, *, can_batch: bool = True) -> None:
        self.can_batch = can_batch
        self.issued: list[int] = []

    def issue(self, words: Sequence[int], _gaps: Gaps) -> None:
        self.issued += words


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
    stream, other, ours, theirs = _stream(), _stream(), _event(), _event()
    commands.record(stream, ours)
    commands.wait(other, ours)
    commands.synchronize(ours)
    commands.give_way(stream, other, ours, theirs)
    assert driver.issued == []
    expected = [Kind.RECORD, stream.handle, ours.handle, Kind.WAIT, other.handle, ours.handle]
    expected += [Kind.SYNCHRONIZE, ours.handle]
    expected += [Kind.GIVE_WAY, stream.handle, other.handle, ours.handle, theirs.handle]
    for _ in range(2):
        commands.run(NO_GAPS)
        assert driver.issued == expected


@pytest.mark.parametrize(("copies", "can_batch", "is_batch"), [(4, True, False), (5, True, True), (5, False, False)])
def test_many_copies_are_one_command_where_the_driver_can(copies: int, can_batch: bool, is_batch: bool) -> None:
    driver = Driver(can_batch=can_batch)
    commands, _ = _list(driver)
    stream = _stream()
    commands.copy(stream, *(_addresses(*range(begin, begin + copies)) for begin in (100, 200, 300)))
    commands.run(NO_GAPS)
    if is_batch:
        kind, where, *_, count = driver.issued
        assert (kind, where, count) == (Kind.COPY_BATCH, stream.handle, copies)
    else:
        ones = [(Kind.COPY, stream.handle, 100 + i, 200 + i, 300 + i) for i in range(copies)]
        assert driver.issued == [word for one in ones for word in one]


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
