"""How far a run is: a bar on a terminal, elsewhere a line now and then. Goes to stderr, beside the results."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

FIRST_LINE_S = 2.0
"""Who is done before has nothing to tell."""
LINE_EVERY_S = 10.0
COUNTED_BY = 100

Item = TypeVar("Item")
Count = Callable[[int], str]
"""Says a number for people."""


class Advance(Protocol):
    """Told how far a run is: what is being done, how much of it is done, and of how much if that is known."""

    def __call__(self, what: str, done: int, total: int | None = None) -> None:
        """Show it."""


def show_nothing(what: str, done: int, total: int | None = None) -> None:
    """Show nothing."""


def plain(number: int) -> str:
    """Say how many."""
    return f"{number:,}"


class LinesNowAndThen:
    """For logs and pipes: the first line after two seconds, then one every ten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, count: Count = plain) -> None:
        self._clock = clock
        self._count = count
        self._begin_s = clock()
        self._next_s = self._begin_s + FIRST_LINE_S

    def is_time(self) -> bool:
        """Say whether a line is due; the next one then is due later."""
        now_s = self._clock()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + LINE_EVERY_S
        return True

    def __call__(self, what: str, done: int, total: int | None = None) -> None:
        """Say it, if it is time for it."""
        if self.is_time():
            of = f" of {self._count(total)}" if total is not None else ""
            sys.stderr.write(f"kvtide: {what}: {self._count(done)}{of}, {self._clock() - self._begin_s:.0f} s\n")
            sys.stderr.flush()


def counted(items: Iterable[Item], what: str, advance: Advance, total: int | None = None) -> Iterator[Item]:
    """Yield the items, and tell how many they were, now and then."""
    for done, item in enumerate(items, start=1):
        if not done % COUNTED_BY:
            advance(what, done, total)
        yield item


@contextmanager
def progress(count: Count = plain) -> Iterator[Advance]:
    """Show how far what runs inside is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LinesNowAndThen(count=count)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[far]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None, far="")

        def advance(what: str, done: int, total: int | None = None) -> None:
            far = f"{count(done)} of {count(total)}, {done / total:.0%}" if total else count(done)
            bar.update(task, description=what, completed=done, total=total, far=far)

        yield advance


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say now and then that what runs inside, which cannot tell how far it is, still runs."""
    done = threading.Event()
    begin_s = time.monotonic()

    def tell() -> None:
        wait_s = FIRST_LINE_S
        while not done.wait(wait_s):
            sys.stderr.write(f"kvtide: {what}, {time.monotonic() - begin_s:.0f} s\n")
            sys.stderr.flush()
            wait_s = LINE_EVERY_S

    teller = threading.Thread(target=tell, name="kvtide-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
