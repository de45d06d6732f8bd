"""Work in a fork of this process: whatever it does to what is in memory, and however it ends, this one goes on.

CPU time is bounded, not time on a clock: a busy machine makes nobody look slow.
"""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

WALL_S = 900.0
"""For what waits for ever without using the CPU."""
MEMORY_BYTES = 6 << 30

Answer = TypeVar("Answer")


def limit_cpu(seconds: float) -> None:
    """Let the kernel end this process unless the limit is set again before so much CPU time is used."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def in_a_fork(work: Callable[[], Answer]) -> Answer | str:
    """Return what `work` returns in a fork of this process, or in words why it did not."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _work(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        if not select.select([pipe], [], [], WALL_S)[0]:
            os.kill(child, signal.SIGKILL)
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        return "it takes too long" if os.WIFSIGNALED(status) else "the process ends"
    outcome: Answer = pickle.loads(said)  # noqa: S301  our own words
    return outcome


def _work(work: Callable[[], object], writing: int) -> NoReturn:
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        outcome = work()
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(outcome, pipe)
        status = 0
    finally:
        os._exit(status)
