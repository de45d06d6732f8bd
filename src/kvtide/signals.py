"""Being told to end: cleaned up as after any other error, so that no file, worker or terminal is left half done."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What ends a program politely; Ctrl-C is Python's own. An ignored one (nohup) stays ignored."""
EXIT_SIGNAL = 128
"""Shells add the number of the signal."""
_AGAIN_S = 0.05


class _ToldToEnd(SystemExit):
    """By a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_SIGNAL + number)
        self.number = number


@contextmanager
def leaving_cleanly() -> Iterator[None]:
    """Let the signals raise `SystemExit` inside. For the main thread."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    hook_before = sys.unraisablehook
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _leave)

    def try_again(ignored: Any) -> None:
        """Python was just freeing something, where it ignores all errors: tell once more."""
        if isinstance(ignored.exc_value, _ToldToEnd):
            signal.signal(ignored.exc_value.number, _leave)
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), ignored.exc_value.number)).start()
        else:
            hook_before(ignored)

    sys.unraisablehook = try_again
    try:
        yield
    finally:
        sys.unraisablehook = hook_before
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # a second one must not interrupt the cleaning up
    raise _ToldToEnd(number)
