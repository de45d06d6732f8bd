"""Being told to end: cleaned up as after any other error, so that no file, worker or terminal is left half done."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What ends a program politely; Ctrl-C is Python's own. An ignored one (nohup) stays ignored."""
EXIT_SIGNAL = 128
"""Shells add the number of the signal."""


@contextmanager
def leaving_cleanly() -> Iterator[None]:
    """Let the signals raise `SystemExit` inside. For the main thread."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # a second one must not interrupt the cleaning up
    sys.exit(EXIT_SIGNAL + number)
