"""Issues lists of commands to the CUDA driver, in one call that lets go of the GIL.

An engine launches its kernels from Python. A thread that issues copies from Python takes the GIL from it for every one
of them: 25 calls for 64 MiB, and launching a step took 40 ms instead of 31. So Python only writes the list, a flat one
of numbers (a command's kind, then its arguments), and `issue.c` goes through it, and waits for the GPU where it has to.

That is compiled at start. Triton needs a C compiler as well, so there is one wherever there are kernels. Should it not
work for us, or not prove itself (see `proof`), `issuing_in_python` takes its place.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib.resources
import os
import shlex
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtide.errors import CopyError

Gaps = npt.NDArray[np.int64]
"""One number: whether gaps are to be left. It may change at any time."""
NO_GAPS: Gaps = np.zeros(1, dtype=np.int64)
Launch = Callable[[], object]
"""Launches a kernel by the launcher that Triton has made for it. Raises what goes wrong."""
Issue = Callable[[Sequence[int], Gaps, Sequence[Launch]], tuple[int, int]]
"""Issues commands until one fails. Returns which word begins the last one, and the driver's error or 0.

C launches kernels by their numbers, Python by the launches, which are in the same order.
"""
MALFORMED = -1
"""The error of a command that must not be handed to the driver, which would crash."""
_COMPILERS = ("gcc", "clang", "cc", "tcc")
_COMPILE_TIMEOUT_S = 30.0
_SAID_MAX = 300
"""Letters of what a compiler has to say."""
_ORDER_STREAM = 1


class Kind(enum.IntEnum):
    """What a command does, and its arguments."""

    COPY = 0
    """stream, addresses of three arrays (to, source, sizes), how long they are; bytes of a turn (0: all of them),
    another stream, an event for each: if gaps are to be left, the two wait for each other after a turn"""
    RECORD = 1
    """stream, event"""
    WAIT = 2
    """stream, event"""
    SYNCHRONIZE = 3
    """event: the thread waits for it"""
    LAUNCH = 4
    """stream, function, programs, threads of each, bytes of shared memory, how many parameters, the parameters"""


_LENGTHS = {Kind.COPY: 9, Kind.RECORD: 2, Kind.WAIT: 2, Kind.SYNCHRONIZE: 1}


def commands(words: Sequence[int]) -> Iterator[tuple[int, Kind, Sequence[int]]]:
    """Read a list: which word begins a command, its kind and its arguments."""
    at = 0
    while at < len(words):
        kind = Kind(words[at])
        length = 6 + words[at + 6] if kind is Kind.LAUNCH else _LENGTHS[kind]
        yield at, kind, words[at + 1 : at + 1 + length]
        at += 1 + length


CALLS = {
    Kind.COPY: "cuMemcpyAsync",
    Kind.RECORD: "cuEventRecord",
    Kind.WAIT: "cuStreamWaitEvent",
    Kind.SYNCHRONIZE: "cuEventSynchronize",
    Kind.LAUNCH: "cuLaunchKernel",
}
"""The driver's call for each kind."""
BATCH = "cuMemcpyBatchAsync"
"""Instead of the first one for more than one copy, where the driver has it: not before CUDA 12.8."""


class _Attributes(ctypes.Structure):
    """How a batch of copies may be carried out."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("destination_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


BATCH_ATTRIBUTES = _Attributes(source_order=_ORDER_STREAM)
"""Stream order: without it a copy may read its source before the kernel that fills it has run (F6)."""


def in_c(library: Any) -> Issue:
    """Return what issues without the GIL. `library` has the driver's calls; that of batches may be missing."""
    native = _compiled().issue
    native.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    found = (getattr(library, name, None) for name in (*CALLS.values(), BATCH))
    calls = [call and ctypes.cast(call, ctypes.c_void_p) for call in found]
    table = (ctypes.c_void_p * (len(calls) + 1))(*calls, ctypes.addressof(BATCH_ATTRIBUTES))

    def issue(words: Sequence[int], gaps: Gaps, _launches: Sequence[Launch]) -> tuple[int, int]:
        numbers, failed_at = array("q", words), ctypes.c_int64()
        code = native(table, numbers.buffer_info()[0], len(numbers), gaps.ctypes.data, ctypes.addressof(failed_at))
        return failed_at.value, code

    return issue


def compiler() -> str | None:
    """Return the command of a C compiler, if there is one."""
    return os.environ.get("CC") or next(filter(None, map(shutil.which, _COMPILERS)), None)


@functools.cache
def _compiled() -> Any:
    command_of = compiler()
    if command_of is None:
        raise CopyError(f"no C compiler: none of {', '.join(_COMPILERS)} is installed, and CC is not set")
    source = importlib.resources.files("kvtide.copy.cuda").joinpath("issue.c").read_bytes()
    with tempfile.TemporaryDirectory(prefix="kvtide-") as folder:
        library = Path(folder, "issue.so")
        command = [*shlex.split(command_of), "-O2", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-o", str(library), "-"]
        # The compiler that Triton uses, on a file of ours.
        ran = subprocess.run(command, input=source, timeout=_COMPILE_TIMEOUT_S, check=False, capture_output=True)  # noqa: S603
        if ran.returncode:
            said = " ".join(ran.stderr.decode(errors="replace").split())[:_SAID_MAX]
            raise CopyError(f"{command_of} does not compile (exit {ran.returncode}): {said}")
        return ctypes.CDLL(str(library))  # stays when the file goes
