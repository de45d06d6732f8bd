"""How far a run is: a bar on a terminal, elsewhere a line now and then. Goes to stderr, beside the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

FIRST_LINE_S = 2.0
"""Who is done before has nothing to tell."""
LINE_EVERY_S = 10.0
COUNTED_BY = 100

Item = TypeVar("Item")


class Advance(Protocol):
    """Told how far a run is: what is being done, how much of it is done, and of how much if that is known."""

    def __call__(self, what: str, done: int, total: int | None = None) -> None:
        """Show it."""


def show_nothing(what: str, done: int, total: int | None = None) -> None:
    """Show nothing."""


class LinesNowAndThen:
    """For logs and pipes: the first line after two seconds, then one every ten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin_s = clock()
        self._next_s = self._begin_s + FIRST_LINE_S

    def __call__(self, what: str, done: int, total: int | None = None) -> None:
        """Say it, if it is time for it."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._next_s = now_s + LINE_EVERY_S
        of = f" of {total:,}" if total is not None else ""
        sys.stderr.write(f"kvtide: {what}: {done:,}{of}, {now_s - self._begin_s:.0f} s\n")
        sys.stderr.flush()


def counted(items: Iterable[Item], what: str, advance: Advance, total: int | None = None) -> Iterator[Item]:
    """Yield the items, and tell how many they were, now and then."""
    for done, item in enumerate(items, start=1):
        if not done % COUNTED_BY:
            advance(what, done, total)
        yield item


@contextmanager
def progress() -> Iterator[Advance]:
    """Show how far what runs inside is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield LinesNowAndThen()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(what: str, done: int, total: int | None = None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield advance
