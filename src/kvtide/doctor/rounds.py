"""Runs checks one after the other, each within its deadline. Whatever a check does, the others have their turn."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

from kvtide.doctor.base import Check, Finding, Result, bad, warning
from kvtide.errors import describe

PATIENCE_S = 2.0
"""After so long somebody who waits is told what for."""

OnSlow = Callable[[Check], None]


def run_checks(checks: Iterable[Check], on_slow: OnSlow, patience_s: float = PATIENCE_S) -> Iterator[Result]:
    """Run checks, and yield each with what it has found. `on_slow` hears of those that take over `patience_s`."""
    for check in checks:
        yield Result(check, _run(check, on_slow, patience_s))


def _run(check: Check, on_slow: OnSlow, patience_s: float) -> Finding:
    """Run one check in a thread of its own, which is left behind if it does not come back: nobody can end it."""
    answers: queue.Queue[Finding] = queue.Queue(maxsize=1)
    threading.Thread(target=lambda: answers.put(_found(check)), name=f"doctor-{check.name}", daemon=True).start()
    patience_s = min(patience_s, check.deadline_s)
    try:
        return answers.get(timeout=patience_s)
    except queue.Empty:
        on_slow(check)
    try:
        return answers.get(timeout=check.deadline_s - patience_s)
    except queue.Empty:
        return bad(
            f"no answer in {check.deadline_s:g} s",
            "find out what hangs (a disk, a driver, a name server; dmesg may say), and try again",
        )


def _found(check: Check) -> Finding:
    try:
        return check.run()
    except BaseException as error:  # what is wrong with one check must not hide what the others find
        return warning(
            f"could not be checked: {describe(error)}",
            "see whether that says what is wrong here; if it does not, it is a fault of kvtide's: please report it",
        )
