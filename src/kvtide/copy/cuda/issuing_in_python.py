"""What `issue.c` does, in Python: where that does not work, and to compare with. Kernels are launched by Triton."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvtide.copy.cuda.issuing import (
    BATCH,
    BATCH_ATTRIBUTES,
    CALLS,
    Gaps,
    Issue,
    Kind,
    Launch,
    commands,
)
from kvtide.copy.cuda.ranges import turns
from kvtide.copy.ids import Ids

_POINTER, _SIZE, _UNSIGNED = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint


def in_python(library: Any, quick: Any) -> Issue:
    """Return what issues with the GIL held.

    `quick` has the calls of `library` without letting go of the GIL: a thread that gives it away for a microsecond
    has to wait until the one that launches the model's kernels lets go again.
    """
    calls = _Calls(library, quick)

    def issue(words: Sequence[int], gaps: Gaps, launches: Sequence[Launch]) -> tuple[int, int]:
        at, ours = 0, iter(launches)
        for at, kind, arguments in commands(words):
            code = 0
            if kind is Kind.LAUNCH:
                next(ours)()
            elif kind is Kind.COPY:
                code = calls.copy(arguments, gaps)
            else:
                code = calls.by_kind[kind](*arguments)
            if code:
                return at, code
        return at, 0

    return issue


class _Calls:
    def __init__(self, library: Any, quick: Any) -> None:
        self._copy = getattr(quick, CALLS[Kind.COPY])
        self._copy.argtypes = (ctypes.c_uint64, ctypes.c_uint64, _SIZE, _POINTER)
        self._record = getattr(quick, CALLS[Kind.RECORD])
        self._record.argtypes = (_POINTER, _POINTER)
        self._wait = getattr(quick, CALLS[Kind.WAIT])
        self._wait.argtypes = (_POINTER, _POINTER, _UNSIGNED)
        self._synchronize = getattr(library, CALLS[Kind.SYNCHRONIZE])
        self._synchronize.argtypes = (_POINTER,)
        self._copy_batch = getattr(library, BATCH, None)
        if self._copy_batch is not None:
            self._copy_batch.argtypes = (*(_POINTER,) * 3, _SIZE, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER)
        self.by_kind: dict[Kind, Callable[..., int]] = {
            Kind.RECORD: lambda stream, event: self._record(event, stream),
            Kind.WAIT: lambda stream, event: self._wait(stream, event, 0),
            Kind.SYNCHRONIZE: self._synchronize,
        }

    def copy(self, arguments: Sequence[int], gaps: Gaps) -> int:
        stream, *addresses, count, turn_bytes, other, ours, theirs = arguments
        to, source, sizes = (_array(address, count) for address in addresses)
        leaves_gaps, code = turn_bytes and gaps[0], 0
        for turn in turns(sizes, turn_bytes if leaves_gaps else int(sizes.sum())):
            code = self._copy_all(stream, to[turn], source[turn], sizes[turn])
            if not code and leaves_gaps:
                code = self._give_way(stream, other, ours, theirs)
            if code:
                break
        return code

    def _copy_all(self, stream: int, to: Ids, source: Ids, sizes: Ids) -> int:
        if len(sizes) > 1 and self._copy_batch is not None:
            arrays = (array.ctypes.data for array in (to, source, sizes))
            attributes_from, failed_at = _SIZE(0), _SIZE(0)
            attributes = ctypes.addressof(BATCH_ATTRIBUTES), ctypes.addressof(attributes_from), 1
            code: int = self._copy_batch(*arrays, len(sizes), *attributes, ctypes.addressof(failed_at), stream)
            return code
        copies = zip(to.tolist(), source.tolist(), sizes.tolist(), strict=True)
        return next(filter(None, (self._copy(*one, stream) for one in copies)), 0)

    def _give_way(self, stream: int, other: int, ours: int, theirs: int) -> int:
        code: int = (
            self._record(ours, stream)
            or self._wait(other, ours, 0)
            or self._record(theirs, other)
            or self._wait(stream, theirs, 0)
        )
        return code


def _array(address: int, count: int) -> Ids:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))
