"""Calls of the CUDA driver, by ctypes: those that torch does not have, and those in which it lets go of the GIL.

Calls that may take long let go of the GIL here too. Those that only put something into a queue keep it: a thread that
gives it away for a microsecond has to wait until the one that took it, which launches the model's kernels, lets go
again. An engine that stored 2 GB had its main thread stopped 430 times.

All but `current_context` and `use_context` want a current context.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtide.errors import CopyError

_REGISTER_PORTABLE, _REGISTER_MAPPED = 1, 2
_CAPTURE_RELAXED = 2
_ORDER_STREAM = 1


class _Attributes(ctypes.Structure):
    """How a batch of copies may be carried out."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("destination_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class Driver:
    """Checked calls into libcuda."""

    def __init__(self, library: Any = None) -> None:
        self._library = library or _load(ctypes.CDLL)
        quick = library or _load(ctypes.PyDLL)
        self._copy = quick.cuMemcpyAsync
        self._copy.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        self._record = quick.cuEventRecord
        self._record.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._wait = quick.cuStreamWaitEvent
        self._wait.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        self._batch = getattr(self._library, "cuMemcpyBatchAsync", None)
        """Missing in drivers before CUDA 12.8."""
        # Stream order: without it a copy may read its source before the kernel that fills it has run (F6).
        self._attributes = _Attributes(source_order=_ORDER_STREAM)
        self._attributes_from = ctypes.c_size_t(0)

    def current_context(self) -> int:
        """Return the context that is current in this thread; 0 for none."""
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value or 0

    def use_context(self, context: int) -> None:
        """Make a context current in this thread. Torch need not do so for its first device."""
        self._call("cuCtxSetCurrent", ctypes.c_void_p(context))

    def relax_capture(self) -> None:
        """Allow this thread all calls while another one captures a CUDA graph; otherwise they break the capture."""
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def copy(self, stream: int, to: int, source: int, nbytes: int) -> None:
        """Issue one copy."""
        self._check("cuMemcpyAsync", self._copy(to, source, nbytes, stream))

    def record(self, event: int, stream: int) -> None:
        """Put an event behind what was issued on a stream."""
        self._check("cuEventRecord", self._record(event, stream))

    def wait(self, stream: int, event: int) -> None:
        """Let what is issued next on a stream begin after an event."""
        self._check("cuStreamWaitEvent", self._wait(stream, event, 0))

    def copy_batch(
        self, stream: int, to: npt.NDArray[np.int64], source: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """Issue many copies, in one call where the driver can."""
        if self._batch is None:
            for one in zip(to.tolist(), source.tolist(), sizes.tolist(), strict=True):
                self.copy(stream, *one)
            return
        arrays = [np.ascontiguousarray(array, dtype=np.int64) for array in (to, source, sizes)]
        failed_at = ctypes.c_size_t(0)
        self._check(
            "cuMemcpyBatchAsync",
            self._batch(
                *(ctypes.c_void_p(array.ctypes.data) for array in arrays),
                ctypes.c_size_t(len(sizes)),
                ctypes.byref(self._attributes),
                ctypes.byref(self._attributes_from),
                ctypes.c_size_t(1),
                ctypes.byref(failed_at),
                ctypes.c_void_p(stream),
            ),
        )

    def pin(self, address: int, nbytes: int) -> None:
        """Register host memory for DMA and kernels, for all contexts."""
        flags = _REGISTER_PORTABLE | _REGISTER_MAPPED
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_uint(flags))

    def unpin(self, address: int) -> None:
        """Take back a registration."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] = getattr(self._library, name)
        self._check(name, function(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
            raise CopyError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


@functools.cache
def _load(kind: type[ctypes.CDLL]) -> Any:
    return kind("libcuda.so.1")
