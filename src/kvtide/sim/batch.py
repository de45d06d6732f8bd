"""Many seeds, on one core or on all of them."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from kvtide.sim.canaries import Canary
from kvtide.sim.options import WITH_NODE, Overrides, apply_overrides
from kvtide.sim.simulation import Result, simulate
from kvtide.sim.tally import Tally
from kvtide.sim.world import World

CHUNK_SEEDS = 25
"""Seeds that one process runs before it says how it went: about a third of a second."""
NODE_EVERY_SEEDS = 8
"""Of every so many seeds one has a second world, with a node, unless worlds of some kind are asked for."""
CANARY_SEEDS_MAX = 5_000
GARBAGE_OBJECTS = 50_000

Progress = Callable[[Tally], None]


def run_seed(seed: int, overrides: Overrides, *, log: bool = False) -> Result:
    """Run the world of one seed."""
    return simulate(apply_overrides(World.draw(seed), overrides), log=log)


def run_chunk(first: int, count: int, overrides: Overrides) -> Tally:
    """Run some seeds in this process."""
    begin_s = time.process_time()
    tally = Tally()
    with _collecting_seldom():
        for seed in range(first, first + count):
            tally.add(run_seed(seed, overrides))
            if not overrides and seed % NODE_EVERY_SEEDS == 0:
                tally.add(run_seed(seed, WITH_NODE), again=True)
    tally.busy_s = time.process_time() - begin_s
    return tally


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Look for garbage less often: most objects of a world live as long as it does, and are looked at in vain."""
    before = gc.get_threshold()
    gc.set_threshold(GARBAGE_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(frozen=True, slots=True)
class Caught:
    """How a canary was caught, or not."""

    canary: Canary
    caught_after: int | None
    """Seeds until it was caught; None if it survived."""
    seed: int | None = None
    invariant: str | None = None
    what: str | None = None
    broken: bool = False
    """What was found is not what this canary is to be caught by: it proves nothing."""


def run_canary(canary: Canary, first: int, overrides: Overrides, seeds_max: int = CANARY_SEEDS_MAX) -> Caught:
    """Let a fault in, and run seeds until something is found."""
    overrides = {**canary.world, **overrides}
    with canary.applied():
        for count, seed in enumerate(range(first, first + seeds_max), start=1):
            found = run_seed(seed, overrides).found
            if found is not None:
                return Caught(canary, count, seed, found.invariant, found.what, broken=not canary.explains(found))
    return Caught(canary, None)


def chunks(first: int, seeds: int | None) -> Iterator[tuple[int, int]]:
    """Cut seeds into pieces, as first seed and count; without an end if `seeds` is None."""
    starts = itertools.count(first, CHUNK_SEEDS) if seeds is None else range(first, first + seeds, CHUNK_SEEDS)
    for start in starts:
        yield start, CHUNK_SEEDS if seeds is None else min(CHUNK_SEEDS, first + seeds - start)


def run_here(pieces: Iterable[tuple[int, int]], overrides: Overrides, progress: Progress) -> Tally:
    """Run seeds in this process. Ctrl-C ends it early."""
    total = Tally()
    try:
        for first, count in pieces:
            total.merge(run_chunk(first, count, overrides))
            progress(total)
    except KeyboardInterrupt:
        total.interrupted = True
    return total


def run_on_all(
    pieces: Iterable[tuple[int, int]], overrides: Overrides, progress: Progress, *, jobs: int, duration_s: float | None
) -> Tally:
    """Run seeds in `jobs` processes, until they are done, time is up, or Ctrl-C."""
    total = Tally()
    deadline_s = None if duration_s is None else time.monotonic() + duration_s
    pieces = iter(pieces)
    pending: set[Future[Tally]] = set()
    context = multiprocessing.get_context("spawn")  # forking a process that has threads may hang
    with ProcessPoolExecutor(jobs, context, _leave_interrupts_to_the_parent) as executor:
        try:
            while True:
                late = deadline_s is not None and time.monotonic() >= deadline_s
                room = 0 if late else 2 * jobs - len(pending)
                for first, count in itertools.islice(pieces, room):
                    pending.add(executor.submit(run_chunk, first, count, overrides))
                if not pending:
                    break
                ended, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in ended:
                    total.merge(future.result())
                progress(total)
        except KeyboardInterrupt:
            total.interrupted = True
            executor.shutdown(wait=False, cancel_futures=True)
    return total


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
