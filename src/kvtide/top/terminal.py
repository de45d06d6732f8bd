"""The live view: draws until a key or Ctrl-C ends it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from kvtide.top.history import Server
from kvtide.top.paper import Paper
from kvtide.top.view import screen

FRAME_S = 0.25
"""Keys are answered, and what was read is drawn, this soon."""
LEAVE = ("q", "Q", "\x1b", "\x03", "\x04")
UP, DOWN = ("\x1b[A", "k"), ("\x1b[B", "j", "\t")

Key = Callable[[float], str | None]
"""Waits at most some seconds for a key; None if none came."""


def show(servers: Callable[[], list[Server]], console: Console, key: Key, *, frames: int | None = None) -> None:
    """Draw what `servers` returns, in place, until it is left or so many frames were drawn."""
    chosen = 0
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while frames is None or frames > 0:
            frames = None if frames is None else frames - 1
            found = servers()
            paper = Paper(console.width, console.height, console.options.ascii_only)
            frame = screen(found, chosen, paper=paper, clock=time.strftime("%H:%M:%S"))
            live.update(frame, refresh=True)
            pressed = key(FRAME_S)
            if pressed in LEAVE:
                return
            chosen = (chosen + (pressed in DOWN) - (pressed in UP)) % len(found)


@contextmanager
def keyboard() -> Iterator[Key]:
    """Yield what waits for a key of the terminal; it only waits where stdin is none."""
    if not sys.stdin.isatty():
        yield _wait_only
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)

    def key(timeout_s: float) -> str | None:
        if not select.select([fd], [], [], timeout_s)[0]:
            return None
        pressed = os.read(fd, 16).decode("utf-8", "replace")
        return pressed or "\x04"  # nothing to read: the terminal is gone

    try:
        yield key
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _wait_only(timeout_s: float) -> None:
    time.sleep(timeout_s)
