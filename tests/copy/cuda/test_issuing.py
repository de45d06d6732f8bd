"""Lists of commands, issued by C and by Python to a driver that writes down what it is asked."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from typing import Any

import numpy as np
import pytest

from kvtide.copy.cuda import driver, issuing
from kvtide.copy.cuda.issuing import Issue, Kind, in_c
from kvtide.copy.cuda.issuing_in_python import in_python
from tests.contracts.copy_contract import PATIENCE_S

POINTER, SIZE, UNSIGNED = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cuMemcpyAsync": (ctypes.c_uint64, ctypes.c_uint64, SIZE, POINTER),
    "cuMemcpyBatchAsync": (POINTER, POINTER, POINTER, SIZE, POINTER, POINTER, SIZE, POINTER, POINTER),
    "cuEventRecord": (POINTER, POINTER),
    "cuStreamWaitEvent": (POINTER, POINTER, UNSIGNED),
    "cuEventSynchronize": (POINTER,),
    "cuLaunchKernel": (POINTER, *(UNSIGNED,) * 7, POINTER, POINTER, POINTER),
}
PARAMETERS = 3


class Driver:
    """Answers with an error at call number `fails_at`. `other` calls are made instead of ours."""

    def __init__(self, fails_at: int = 1 << 30, **other: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._fails_at = fails_at
        for name, types in ARGUMENTS.items():
            ours = ctypes.CFUNCTYPE(ctypes.c_int, *types)(self._writer(name))
            setattr(self, name, other.get(name, ours))

    def _writer(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            told = list(arguments)
            if name == "cuLaunchKernel":
                values = ctypes.cast(told[9], ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))
                told[9] = [values[i][0] for i in range(PARAMETERS)]
            if name == "cuMemcpyBatchAsync":
                assert told[4] == ctypes.addressof(issuing.BATCH_ATTRIBUTES)
                told[5] = ctypes.c_size_t.from_address(told[5]).value
                told[7] = "somewhere"
            self.calls.append((name, *told))
            return 700 if len(self.calls) == self._fails_at else 0

        return call


class Commands:
    """Some of each kind."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._arrays: list[Any] = []  # whose addresses are in the list
        self.words: list[int] = []
        for _ in range(40):
            kind = rng.choice(list(Kind))
            arguments = self._some(1 if kind is Kind.SYNCHRONIZE else 2)
            if kind is Kind.LAUNCH:
                arguments += [rng.randrange(1, 256), 128, rng.randrange(1 << 16), PARAMETERS, *self._some(2), -5]
            if kind is Kind.COPY:
                arguments = [*self._some(1), *self._copies(rng.randint(1, 30)), rng.choice([0, 1, 60]), *self._some(3)]
            self.words += [kind, *arguments]

    def _some(self, count: int) -> list[int]:
        return [self._rng.randrange(1, 1 << 47) for _ in range(count)]

    def _copies(self, count: int) -> list[int]:
        sizes = [self._rng.randint(1, 25) for _ in range(count)]
        arrays = [np.array(numbers) for numbers in (self._some(count), self._some(count), sizes)]
        self._arrays += arrays
        return [*(array.ctypes.data for array in arrays), count]


def both(fails_at: int = 1 << 30, **other: Any) -> list[tuple[Issue, Driver]]:
    native, twin = Driver(fails_at, **other), Driver(fails_at, **other)
    return [(in_c(native), native), (in_python(twin, twin), twin)]


@pytest.mark.parametrize("gaps", [0, 1])
@pytest.mark.parametrize("seed", range(5))
def test_c_asks_the_driver_for_the_same_as_python(seed: int, gaps: int) -> None:
    some = Commands(random.Random(seed))
    words = some.words
    (by_c, native), (by_python, twin) = both()
    assert by_c(words, np.array([gaps])) == by_python(words, np.array([gaps]))
    assert native.calls == twin.calls
    assert {call for call, *_ in native.calls} == set(ARGUMENTS)


GAP = [
    ("cuEventRecord", 5, 1),
    ("cuStreamWaitEvent", 3, 5, 0),
    ("cuEventRecord", 6, 3),
    ("cuStreamWaitEvent", 1, 6, 0),
]


@pytest.mark.parametrize("can_batch", [False, True])
def test_many_copies_are_one_call_where_the_driver_can(can_batch: bool) -> None:
    arrays = [np.arange(5) + begin for begin in (100, 200, 300)]
    words = [Kind.COPY, 1, *(array.ctypes.data for array in arrays), 5, 0, 0, 0, 0]
    other: dict[str, Any] = {} if can_batch else {"cuMemcpyBatchAsync": None}
    for issue, fake in both(**other):
        assert issue(words, np.ones(1, dtype=np.int64)) == (Kind.COPY, 0)
        assert len(fake.calls) == (1 if can_batch else 5)


def test_commands_say_what_goes_where() -> None:
    arrays = [np.array(numbers) for numbers in ([20, 21, 22], [30, 31, 32], [400, 500, 600])]
    words = [Kind.COPY, 1, *(array.ctypes.data for array in arrays), 3, 900, 3, 5, 6]
    words += [Kind.RECORD, 1, 7, Kind.WAIT, 2, 7, Kind.SYNCHRONIZE, 8]
    words += [Kind.LAUNCH, 2, 99, 16, 128, 0, 3, 10, -11, 12]
    for issue, fake in both():
        assert issue(words, np.ones(1, dtype=np.int64))[1] == 0
        assert fake.calls == [
            ("cuMemcpyAsync", 20, 30, 400, 1),
            ("cuMemcpyAsync", 21, 31, 500, 1),
            *GAP,
            ("cuMemcpyAsync", 22, 32, 600, 1),
            *GAP,
            ("cuEventRecord", 7, 1),
            ("cuStreamWaitEvent", 2, 7, 0),
            ("cuEventSynchronize", 8),
            ("cuLaunchKernel", 99, 16, 1, 1, 128, 1, 1, 0, 2, [10, -11, 12], None),
        ]


@pytest.mark.parametrize("fails_at", range(1, 40, 3))
def test_nothing_is_issued_after_a_command_that_failed(fails_at: int) -> None:
    some = Commands(random.Random(fails_at))
    words = some.words
    (by_c, native), (by_python, twin) = both(fails_at)
    found = by_c(words, np.ones(1, dtype=np.int64))
    assert found == by_python(words, np.ones(1, dtype=np.int64))
    assert found[1] == 700
    assert native.calls == twin.calls
    assert len(native.calls) == fails_at


def test_who_holds_the_gil_is_not_held_up_while_c_waits_for_the_gpu() -> None:
    """The interpreter is told never to take the GIL away, so this thread only runs if it is let go of."""
    seen: list[str] = []
    begun = threading.Event()

    def record(_event: int, _stream: int) -> int:
        seen.append("issued")
        begun.set()
        return 0

    recorder = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER)(record)
    fake = Driver(cuEventRecord=recorder, cuEventSynchronize=ctypes.CDLL(None).usleep)
    words = [Kind.RECORD, 1, 2, Kind.SYNCHRONIZE, 300_000, Kind.RECORD, 1, 2]
    issue = in_c(fake)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e3)
    try:
        other = threading.Thread(target=issue, args=(words, issuing.NO_GAPS))
        other.start()
        assert begun.wait(PATIENCE_S)
        seen.append("here")
        other.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(interval_s)
    assert seen == ["issued", "here", "issued"]


def test_for_want_of_a_compiler_python_issues_and_a_warning_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    issuing._compiled.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert driver.issuer(Driver(), Driver(), in_c=True) is not None
    assert "no C compiler: none of gcc, clang, cc" in caplog.text
    monkeypatch.setenv("CC", "no-such-compiler")
    words = [Kind.RECORD, 1, 2]
    fake = Driver()
    assert driver.issuer(fake, fake, in_c=True)(words, issuing.NO_GAPS) == (Kind.RECORD, 0)
    assert fake.calls == [("cuEventRecord", 2, 1)]
    assert "No such file or directory: 'no-such-compiler'" in caplog.text
