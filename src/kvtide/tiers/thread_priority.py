"""How urgent a thread's work is, as the system's scheduler sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL, _BATCH = getattr(os, "SCHED_OTHER", None), getattr(os, "SCHED_BATCH", None)


@contextmanager
def in_no_hurry() -> Iterator[None]:
    """Inside this block, let this thread wait for its turn when it wakes up, and not interrupt the thread that runs.

    For puts, which nobody waits for. On a machine with few cores the thread that sends wakes up whenever the server has
    read some bytes, and would interrupt that server each time. The thread still gets its usual share of the processor,
    so locks that it holds are not held for longer.

    Start no threads inside: they would keep this way of waiting.
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
