"""How urgent a thread's work is, as the system's scheduler sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL, _BATCH = getattr(os, "SCHED_OTHER", None), getattr(os, "SCHED_BATCH", None)


@contextmanager
def in_no_hurry() -> Iterator[None]:
    """Let this thread take its turn when it wakes up, instead of interrupting who runs.

    For threads that move bytes which nobody waits for: where cores are scarce, they would mostly interrupt the server
    that they send to, at every portion that it makes room for. Their share of the processor stays what it is, so that
    nobody who needs a lock of theirs waits longer. Threads that are started meanwhile would stay like that for good.
    """
    switched = _switch(_USUAL, _BATCH)
    try:
        yield
    finally:
        if switched:
            _switch(_BATCH, _USUAL)


def _switch(before: int | None, after: int | None) -> bool:
    """Change this thread's policy, unless somebody chose another than we know of, or the system does not let us."""
    if before is None or after is None:
        return False
    try:
        if os.sched_getscheduler(0) != before:
            return False
        os.sched_setscheduler(0, after, os.sched_param(0))
    except OSError:
        return False
    return True
