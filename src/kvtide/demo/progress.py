"""Shows how far the runs are: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvtide.demo.compare import RUNS, OnTurn
from kvtide.progress import LinesNowAndThen

LABELS = {
    "unlimited": "unlimited device pool",
    "none": "no offloading",
    "eager": "kvtide, eager",
    "lazy": "kvtide, lazy",
    "plain": "kvtide, as it is",
    "packed": "kvtide, packed",
    "first": "a first engine",
    "second": "a second engine",
    "restarted": "the first, restarted",
}
"""The runs in words."""


@contextmanager
def shown(console: Console, turns: int, runs: Sequence[str] = RUNS) -> Iterator[OnTurn]:
    """Return what is to be told after each turn; `turns` is how many each run has."""
    if console.is_terminal:
        with _bars(console) as progress:
            tasks = {run: progress.add_task(LABELS[run], total=turns, start=False) for run in runs}
            yield lambda run, done: _move(progress, tasks, run, done)
    else:
        yield _Lines(console, turns)


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TextColumn("turns"))
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


def _move(progress: Progress, tasks: dict[str, TaskID], run: str, done: int) -> None:
    if done == 0:
        progress.start_task(tasks[run])
    progress.update(tasks[run], completed=done)


class _Lines:
    """A line for each run when it is over, and now and then before."""

    def __init__(self, console: Console, turns: int) -> None:
        self._console = console
        self._turns = turns
        self._begin_s = 0.0
        self._lines = LinesNowAndThen()

    def __call__(self, run: str, done: int) -> None:
        if done == 0:
            self._begin_s = time.perf_counter()
            self._lines = LinesNowAndThen()
        if done < self._turns:
            self._lines(LABELS[run], done, self._turns)
        else:
            wall_s = time.perf_counter() - self._begin_s
            self._console.print(f"==> {LABELS[run]}: {done} turns in {wall_s:.1f} s", highlight=False)
