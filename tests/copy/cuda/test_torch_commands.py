"""What torch's streams, events and kernels become in a list of commands. Torch is not needed for that."""

from __future__ import annotations

import ctypes
import gc
import itertools
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvtide.copy.cuda.gpu import Gap
from kvtide.copy.cuda.issuing import NO_GAPS, Gaps, Kind, Launch
from kvtide.copy.cuda.torch_commands import Kernel, TorchCommands, TorchEvent, TorchMemory, TorchStream
from kvtide.errors import CopyError

_NUMBERS = itertools.count(1000)


class Driver:
    def __init__(self, *, in_c: bool = True) -> None:
        self.issued: list[int] = []
        self.in_c = in_c

    def issue(self, words: Sequence[int], _gaps: Gaps, launches: Sequence[Launch]) -> None:
        self.issued += words
        for launch in launches:
            launch()


class Reader(Driver):
    """Reads the arrays of the one command it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[list[int]] = []

    def issue(self, words: Sequence[int], gaps: Gaps, launches: Sequence[Launch]) -> None:
        self.arrays = [list((ctypes.c_int64 * words[5]).from_address(at)) for at in words[2:5]]
        super().issue([*words[:2], *words[5:]], gaps, launches)


class Triton:
    """A kernel that writes down with what it is launched."""

    def __init__(self, types: Sequence[str] = ("*i64", "i64", "i32"), **about: int) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.function = 4242
        self.metadata = SimpleNamespace(shared=64, num_warps=4, **about)
        signature = dict(enumerate([*types, "constexpr"]))
        self.src = SimpleNamespace(signature=signature)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **options: int) -> Any:
            self.launches.append((grid, *arguments, options))
            return self

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


def _list(driver: Any, triton: Triton | None = None) -> tuple[TorchCommands, Triton]:
    triton = triton or Triton()
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


def test_an_event_lives_until_the_list_is_run_even_if_its_owner_takes_another_one() -> None:
    """Torch destroys an event with its last reference, and the driver crashes when it is handed a destroyed one."""

    class Looking(Driver):
        def issue(self, words: Sequence[int], gaps: Gaps, launches: Sequence[Launch]) -> None:
            gc.collect()
            self.alive = [one() is not None for one in owned]
            super().issue(words, gaps, launches)

    driver = Looking()
    commands, _ = _list(driver)
    stream, other = _stream(), _stream()
    events = [_event() for _ in range(5)]
    owned = [weakref.ref(one) for one in (stream, other, *events)]
    commands.record(stream, events[0])
    commands.wait(stream, events[1])
    commands.synchronize(events[2])
    commands.copy(stream, *(_addresses(1),) * 3, Gap(64, other, events[3], events[4]))
    del stream, other
    events.clear()
    commands.run(NO_GAPS)
    assert driver.alive == 7 * [True]
    assert [one() for one in owned] == 7 * [None], "and not longer"


def test_a_kernel_is_compiled_once_by_a_launch_that_has_nothing_to_do() -> None:
    driver = Driver()
    commands, triton = _list(driver)
    stream, to = _stream(), Tensor(8000)
    pinned = np.arange(1500, dtype=np.int64)
    for _ in range(2):
        commands.fetch(stream, TorchMemory(None, to, 8000), pinned)
    commands.run(NO_GAPS)
    assert triton.launches == [((1, 1, 1), to, 0, 0, 1024, {"num_warps": 4})]
    values = [8000, (pinned.ctypes.data - 8000) // 8, 1500]
    assert driver.issued == 2 * [Kind.LAUNCH, stream.handle, 4242, 2, 128, 64, 5, *values, 0, 0]


def test_where_c_does_not_issue_triton_launches_its_kernels_itself() -> None:
    driver = Driver(in_c=False)
    commands, triton = _list(driver)
    stream, to = _stream(), Tensor(8000)
    pinned = np.arange(1500, dtype=np.int64)
    commands.fetch(stream, TorchMemory(None, to, 8000), pinned)
    assert triton.launches == []
    commands.run(NO_GAPS)
    assert triton.launches[1:] == [
        ((2, 1, 1), to, (pinned.ctypes.data - 8000) // 8, 1500, 1024, {"stream": stream.handle})
    ]
    commands.run(NO_GAPS)
    assert len(triton.launches) == 2


@pytest.mark.parametrize(
    ("triton", "why"),
    [
        (Triton(("*i64", "i64")), "takes"),
        (Triton(("*i64", "i64", "i32", "i32")), "takes"),
        (Triton(("*i64", "i32", "i32")), "takes"),  # the address is a larger number
        (Triton(("*i64", "i64", "fp32")), "takes"),
        (Triton(num_ctas=2), "num_ctas"),
        (Triton(global_scratch_size=128), "global_scratch_size"),
        (Triton(launch_pdl=1), "launch_pdl"),
    ],
)
def test_a_kernel_that_is_not_what_we_know_of_tritons_is_not_launched_by_c(triton: Triton, why: str) -> None:
    commands, _ = _list(Driver(), triton)
    far_away = np.empty(1 << 23, dtype=np.int64)  # so large that it is mapped, at an address above 32 bits
    with pytest.raises(CopyError, match=why):
        commands.fetch(_stream(), TorchMemory(None, Tensor(8000), 8000), far_away)


def test_a_kernel_is_not_given_memory_that_is_nowhere() -> None:
    commands, _ = _list(Driver())
    with pytest.raises(CopyError, match="takes"):
        commands.fetch(_stream(), TorchMemory(None, Tensor(0), 8000), np.arange(1500, dtype=np.int64))
