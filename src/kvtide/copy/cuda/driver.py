"""Calls of the CUDA driver, by ctypes: those that torch does not have, and lists of commands (see `issuing`).

All but `current_context`, `use_context` and `lend` want a current context.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvtide.copy.cuda import issuing
from kvtide.copy.cuda.issuing_in_python import in_python
from kvtide.errors import CopyError, describe

_LOG = logging.getLogger(__name__)
_REGISTER_PORTABLE, _REGISTER_MAPPED = 1, 2
_CAPTURE_RELAXED = 2


class Driver:
    """Checked calls into libcuda. `in_c=False` issues commands from Python, to compare with."""

    def __init__(self, *, in_c: bool = True, library: Any = None) -> None:
        self._library = library or _load(ctypes.CDLL)
        self._issue_from_python = in_python(self._library, library or _load(ctypes.PyDLL))
        self._issue = self._issue_from_python
        self.in_c = False
        """Commands are issued by C, which launches kernels itself."""
        if in_c:
            try:
                self._issue, self.in_c = issuing.in_c(self._library), True
            except (OSError, ValueError, subprocess.SubprocessError) as error:  # a CC of any kind, no place for files
                self.issue_from_python(error)

    def issue_from_python(self, error: Exception) -> None:
        """Issue from Python from now on, because C does not work, and say so."""
        self._issue, self.in_c = self._issue_from_python, False
        _LOG.warning(
            "copies are issued from Python, which slows down the launches of kernels, because C cannot: %s",
            describe(error),
        )

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
        self._exchange_capture_mode(_CAPTURE_RELAXED)

    @contextlib.contextmanager
    def lend(self, context: int) -> Iterator[None]:
        """Make a context current in this thread for a while, and relax captures."""
        before = self._exchange_capture_mode(_CAPTURE_RELAXED)
        self._call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
            self._exchange_capture_mode(before)

    def issue(self, words: Sequence[int], gaps: issuing.Gaps, launches: Sequence[issuing.Launch]) -> None:
        """Issue a list of commands, up to the first that fails."""
        failed_at, code = self._issue(words, gaps, launches)
        if code == issuing.MALFORMED:
            raise CopyError(f"a command is malformed: {list(words[failed_at : failed_at + 10])}")
        if code:
            begins = [at for at, *_ in issuing.commands(words)]
            kind = issuing.Kind(words[failed_at])
            which = f"command {begins.index(failed_at) + 1} of {len(begins)}, {kind.name.lower()}"
            self._check(f"{issuing.CALLS[kind]} ({which})", code)

    def pin(self, address: int, nbytes: int) -> None:
        """Register host memory for DMA and kernels, for all contexts."""
        flags = _REGISTER_PORTABLE | _REGISTER_MAPPED
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_uint(flags))

    def unpin(self, address: int) -> None:
        """Take back a registration."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def _exchange_capture_mode(self, new: int) -> int:
        mode = ctypes.c_int(new)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return mode.value

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] = getattr(self._library, name)
        self._check(name, function(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code:
            raise CopyError(f"{name}: {self._told('cuGetErrorName', code)}, {self._told('cuGetErrorString', code)}")

    def _told(self, by: str, code: int) -> str:
        text = ctypes.c_char_p()
        getattr(self._library, by)(ctypes.c_int(code), ctypes.byref(text))
        return text.value.decode() if text.value else f"error {code}"


@functools.cache
def _load(kind: type[ctypes.CDLL]) -> Any:
    return kind("libcuda.so.1")
