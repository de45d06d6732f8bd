"""Lists of commands, issued by C and by Python to a driver that writes down what it is asked."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from kvtide.copy.cuda import issuing
from kvtide.copy.cuda.driver import Driver
from kvtide.copy.cuda.issuing import NO_GAPS, Gaps, Kind, commands, in_c
from kvtide.copy.cuda.issuing_in_python import in_python
from kvtide.errors import CopyError
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


class Library:
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
            return self._write(name, *told)

        return call

    def _write(self, *told: Any) -> int:
        self.calls.append(told)
        return 700 if len(self.calls) == self._fails_at else 0

    def launches(self, words: Sequence[int]) -> list[Any]:
        """Return what Triton would launch."""
        return [partial(self._launch, *arguments) for _, kind, arguments in commands(words) if kind is Kind.LAUNCH]

    def _launch(self, stream: int, function: int, programs: int, threads: int, nbytes: int, _: int, *p: int) -> None:
        assert not self._write("cuLaunchKernel", function, programs, 1, 1, threads, 1, 1, nbytes, stream, list(p), None)

    def cuGetErrorName(self, code: Any, text: Any) -> None:  # noqa: N802 - the driver's name
        text._obj.value = {700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}.get(code.value)

    def cuGetErrorString(self, code: Any, text: Any) -> None:  # noqa: N802 - the driver's name
        text._obj.value = {700: b"an illegal memory access was encountered"}.get(code.value)


class Commands:
    """Some of each kind."""

    def __init__(self, rng: random.Random, kinds: Sequence[Kind] = tuple(Kind)) -> None:
        self._rng = rng
        self._arrays: list[Any] = []  # whose addresses are in the list
        self.words: list[int] = []
        for _ in range(40):
            kind = rng.choice(kinds)
            arguments = self._some(1 if kind is Kind.SYNCHRONIZE else 2)
            if kind is Kind.LAUNCH:
                arguments += [rng.randrange(1, 256), 128, rng.randrange(1 << 16), PARAMETERS, *self._some(2), -5]
            if kind is Kind.COPY:
                arguments = [
                    *self._some(1),
                    *self._copies(rng.choice([1, 2, 30])),
                    rng.choice([0, 1, 60]),
                    *self._some(3),
                ]
            self.words += [kind, *arguments]

    def _some(self, count: int) -> list[int]:
        return [self._rng.randrange(1, 1 << 47) for _ in range(count)]

    def _copies(self, count: int) -> list[int]:
        sizes = [self._rng.randint(1, 25) for _ in range(count)]
        arrays = [np.array(numbers) for numbers in (self._some(count), self._some(count), sizes)]
        self._arrays += arrays
        return [*(array.ctypes.data for array in arrays), count]


Issue = Callable[[Sequence[int], Gaps], tuple[int, int]]


def both(fails_at: int = 1 << 30, **other: Any) -> list[tuple[Issue, Library]]:
    native, twin = Library(fails_at, **other), Library(fails_at, **other)
    by_c, by_python = in_c(native), in_python(twin, twin)
    return [
        (lambda words, gaps: by_c(words, gaps, ()), native),
        (lambda words, gaps: by_python(words, gaps, twin.launches(words)), twin),
    ]


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
        assert issue(words, np.ones(1, dtype=np.int64)) == (0, 0)
        assert len(fake.calls) == (1 if can_batch else 5)


def test_copies_are_one_call_where_no_gaps_are_left() -> None:
    arrays = [np.arange(5) + begin for begin in (100, 200, 300)]
    words = [Kind.COPY, 1, *(array.ctypes.data for array in arrays), 5, 300, 3, 5, 6]
    for issue, fake in both():
        assert issue(words, np.zeros(1, dtype=np.int64)) == (0, 0)
        assert len(fake.calls) == 1


def test_commands_say_what_goes_where() -> None:
    arrays = [np.array(numbers) for numbers in ([20, 21, 22], [30, 31, 32], [400, 500, 600])]
    words = [Kind.COPY, 1, *(array.ctypes.data for array in arrays), 3, 900, 3, 5, 6]
    words += [Kind.RECORD, 1, 7, Kind.WAIT, 2, 7, Kind.SYNCHRONIZE, 8]
    words += [Kind.LAUNCH, 2, 99, 16, 128, 0, 3, 10, -11, 12]
    how = ctypes.addressof(issuing.BATCH_ATTRIBUTES), 0, 1, "somewhere", 1
    for issue, fake in both():
        assert issue(words, np.ones(1, dtype=np.int64))[1] == 0
        assert fake.calls == [
            ("cuMemcpyBatchAsync", *(array.ctypes.data for array in arrays), 2, *how),
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
    some = Commands(random.Random(fails_at), [kind for kind in Kind if kind is not Kind.LAUNCH])
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
    fake = Library(cuEventRecord=recorder, cuEventSynchronize=ctypes.CDLL(None).usleep)
    words = [Kind.RECORD, 1, 2, Kind.SYNCHRONIZE, 300_000, Kind.RECORD, 1, 2]
    issue = in_c(fake)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e3)
    try:
        other = threading.Thread(target=issue, args=(words, NO_GAPS, ()))
        other.start()
        assert begun.wait(PATIENCE_S)
        seen.append("here")
        other.join(PATIENCE_S)
    finally:
        sys.setswitchinterval(interval_s)
    assert seen == ["issued", "here", "issued"]


def test_an_error_says_its_name_and_which_command_had_it() -> None:
    words = [Kind.RECORD, 1, 2, Kind.SYNCHRONIZE, 2, Kind.LAUNCH, 2, 99, 16, 128, 0, 3, 10, -11, 12, Kind.WAIT, 1, 2]
    with pytest.raises(CopyError) as found:
        Driver(library=Library(3)).issue(words, NO_GAPS, ())
    assert str(found.value) == (
        "cuLaunchKernel (command 3 of 4, launch): CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access was encountered"
    )
    with pytest.raises(CopyError, match=r"^cuEventSynchronize \(command 2 of 4, synchronize\): CUDA_ERROR_ILLEGAL_"):
        Driver(library=Library(2), in_c=False).issue(words, NO_GAPS, ())


ADDRESSES = np.array([64, 64])
BAD_SIZES = np.array([64, 0])
AT = int(ADDRESSES.ctypes.data)


@pytest.mark.parametrize(
    "command",
    [
        [Kind.RECORD, 1, 0],
        [Kind.RECORD, 0, 1],
        [Kind.RECORD, 1],
        [Kind.WAIT, 1, 0],
        [Kind.SYNCHRONIZE, 0],
        [Kind.SYNCHRONIZE],
        [Kind.LAUNCH, 1, 0, 1, 128, 0, 0],
        [Kind.LAUNCH, 1, 99, 0, 128, 0, 0],
        [Kind.LAUNCH, 1, 99, 1, 128, -1, 0],
        [Kind.LAUNCH, 1, 99, 1, 128, 0, 2, 1],
        [Kind.LAUNCH, 1, 99, 1, 128, 0, 17, *range(17)],
        [Kind.COPY, 0, AT, AT, AT, 2, 0, 0, 0, 0],
        [Kind.COPY, 1, AT, AT, 0, 2, 0, 0, 0, 0],
        [Kind.COPY, 1, AT, AT, int(BAD_SIZES.ctypes.data), 2, 0, 0, 0, 0],
        [Kind.COPY, 1, AT, AT, AT, -1, 0, 0, 0, 0],
        [Kind.COPY, 1, AT, AT, AT, 2, 5, 1, 0, 1],
        [Kind.COPY, 1, AT, AT, AT, 2, -5, 1, 1, 1],
        [Kind.COPY, 1, AT, AT, AT, 2],
        [5, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [-1],
    ],
)
def test_c_does_not_hand_the_driver_what_would_crash_it(command: list[int]) -> None:
    fake = Library()
    with pytest.raises(CopyError, match="malformed"):
        Driver(library=fake).issue([Kind.RECORD, 1, 2, *command], NO_GAPS, ())
    assert fake.calls == [("cuEventRecord", 2, 1)]


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        (None, "no C compiler: none of gcc, clang, cc"),
        ("no-such-compiler", "directory: 'no-such-compiler'"),
        ("cc 'half", "No closing quotation"),
        (
            f"{sys.executable} -c 'raise SystemExit(\"no licence today\")'",
            "does not compile (exit 1): no licence today",
        ),
        (f"{sys.executable} -c 0", "issue.so: cannot open shared object file"),
    ],
    ids=["none", "missing", "half a word", "fails", "makes nothing"],
)
def test_for_want_of_a_compiler_python_issues_and_a_warning_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, compiler: str | None, why: str
) -> None:
    issuing._compiled.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    if compiler is not None:
        monkeypatch.setenv("CC", compiler)
    fake = Library()
    driver = Driver(library=fake)
    assert not driver.in_c
    driver.issue([Kind.RECORD, 1, 2], NO_GAPS, ())
    assert fake.calls == [("cuEventRecord", 2, 1)]
    assert why in caplog.text
