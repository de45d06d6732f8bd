"""Has the pages of shared memory made real in the background, by another process (`pages.py`)."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvtide.node.pages import FAILED, HUGE, PIECE_BYTES

_PROGRAM = Path(__file__).with_name("pages.py")
_STOP_TIMEOUT_S = 10.0


class Touching:
    """One process for the memory behind a descriptor. `touched_bytes` grows; what is below it is there.

    `collapses`: the kernel is asked for huge pages, which it does not give to shared memory by itself.
    """

    def __init__(self, descriptor: int, nbytes: int, *, collapses: bool = False) -> None:
        self._descriptor = descriptor
        self._nbytes = nbytes
        self._collapses = collapses
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self.touched_bytes = self.huge_bytes = 0
        """How much is there, and how much of that in huge pages."""
        self.failure = ""

    def start(self, on_end: Callable[[], None]) -> None:
        """Begin; `on_end` is called by a thread when it has ended, unless it was stopped. Raises OSError."""
        options = ("huge",) if self._collapses else ()
        command = (sys.executable, "-I", "-S", str(_PROGRAM), str(self._descriptor), str(self._nbytes), *options)
        self._process = subprocess.Popen(  # noqa: S603 (our own words)
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=(self._descriptor,)
        )
        listen = partial(self._listen, self._process, on_end)
        self._thread = threading.Thread(target=listen, name="kvtide-touch", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            process, self._process = self._process, None
            with process:
                process.kill()
            raise OSError(errno.EAGAIN, str(error)) from error

    def stop(self) -> None:
        """Stop, if it has begun. Afterwards no other process of this node has the memory."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()
            self._thread.join(_STOP_TIMEOUT_S)
            if self._thread.is_alive():
                raise TimeoutError(f"the process that touches its pages did not end within {_STOP_TIMEOUT_S:g} s")

    def _listen(self, process: subprocess.Popen[bytes], on_end: Callable[[], None]) -> None:
        with process:
            assert process.stdout is not None
            for piece in iter(partial(process.stdout.read, 1), b""):
                if piece == FAILED:
                    self.failure = process.stdout.read().decode(errors="replace")
                    break
                self.huge_bytes += PIECE_BYTES * (piece == HUGE)
                self.touched_bytes = min(self.touched_bytes + PIECE_BYTES, self._nbytes)
        if process.returncode:
            self.failure = f"the process that touches its pages has ended with {process.returncode}"
        if not self._stopped:
            on_end()
