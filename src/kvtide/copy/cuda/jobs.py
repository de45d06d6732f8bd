"""Which transfers are in flight on a GPU: the books of all copy engines, and what is under way on the device.

    submitted ── queued ── next ──► being issued ── issued ──► under way ──┬─► done ───┬─► polled
                   └── close ───────────┴──────────── raises ──────────────┴─► failed ─┘

A store that packs is queued once more, with the blocks that do not pack, when it is known which these are.

Lane threads take jobs and say what became of issuing them. Everything else is the worker's thread, which looks at
events itself: nobody has to wake up for a transfer that ends.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvtide.copy import in_flight
from kvtide.copy.base import Direction, Fence, Finished, Traffic
from kvtide.copy.cuda.ends import Ends
from kvtide.copy.cuda.lane_parts import Issued
from kvtide.copy.cuda.packed_sizes import Rest, Sizes
from kvtide.core.messages import Copy
from kvtide.errors import describe

_LOG = logging.getLogger(__name__)
_LOOK_AGAIN_S = 50e-6


@dataclass(slots=True, eq=False)
class Job(in_flight.Job):
    """One transfer, and its events."""

    issued: Issued | None = None
    """The events of a transfer under way; before, events of an earlier one that may be used again."""
    rest: Rest | None = None
    """Of a store: blocks that do not pack, and have to be copied as they are."""
    busy_s: float = 0.0
    """Time of what is over of it."""
    taken_s: float = 0.0
    """When a lane began to issue it."""
    end_s: float = 0.0
    """Of a load under way: when it will be over."""
    has_begun: bool = False


class Jobs:
    """The transfers in flight, at most `max_transfers`. All methods may be called from any thread."""

    def __init__(self, sizes: Sizes, max_transfers: int, load_ends: Ends) -> None:
        self._sizes = sizes
        self._load_ends = load_ends
        self._lock = threading.RLock()
        # One for each lane: a thread that wakes up for nothing takes the GIL from one that computes.
        self._wanted = {direction: threading.Condition(self._lock) for direction in Direction}
        self._in_flight = in_flight.InFlight(Job, max_transfers)
        self._spare: list[Issued] = []
        self._under_way: dict[Direction, deque[Job]] = {direction: deque() for direction in Direction}
        self._lost: str | None = None

    # ------------------------------------------------------------------ the worker's side

    def submit(self, direction: Direction, copy: Copy, after: Fence | None) -> bool:
        """Queue a transfer; False if it is refused."""
        with self._lock:
            if not self._in_flight.add(direction, copy, after):
                return False
            self._wanted[direction].notify()
            return True

    def poll(self) -> Finished:
        """Return the transfers that ended since the last call."""
        with self._lock:
            self._collect()
            return self._in_flight.poll()

    def wait(self, ids: Iterable[int] | None, timeout_s: float) -> bool:
        """Block until none of the transfers (None: of all that were issued) is under way, at most `timeout_s`."""
        with self._lock:
            jobs = self._in_flight.find(ids)
        return self._look_until(lambda: all(job.ended for job in jobs), timeout_s)

    def certain(self, within_s: float) -> dict[int, Fence]:
        """Return the loads under way that are over within so long, with what compute has to wait for."""
        with self._lock:
            self._collect()
            loads = self._under_way[Direction.LOAD]
            if within_s < math.inf:
                self._look_who_has_begun(loads)
            by_s = time.monotonic() + within_s
            return {job.copy.id: job.issued.end.wait for job in loads if job.issued is not None and job.end_s <= by_s}

    def wait_certain(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until each of the transfers is under way or has ended, at most `timeout_s`."""
        with self._lock:
            jobs = self._in_flight.find(ids)
        under_way = self._under_way[Direction.LOAD]
        return self._look_until(
            lambda: all(job.ended or job in under_way for job in jobs), timeout_s, 4 * _LOOK_AGAIN_S
        )

    def close(self) -> None:
        """Take no more transfers, and fail those that no thread has taken."""
        with self._lock:
            self._in_flight.close()
            for wanted in self._wanted.values():
                wanted.notify_all()

    def traffic(self, direction: Direction) -> Traffic:
        """Return what was moved in one direction, as far as it was looked at."""
        with self._lock:
            self._collect()
            return self._in_flight.traffic[direction]

    @property
    def lost(self) -> str | None:
        """Why the device does not answer any more, or None."""
        return self._lost

    # ------------------------------------------------------------------ a lane's side

    def next(self, direction: Direction) -> Job | None:
        """Wait for something to do. None: the engine is closed, or the program ends without closing it."""
        with self._lock:
            job = self._in_flight.next((direction,), self._wanted[direction])
            if job is not None:
                job.taken_s = time.monotonic()
                if self._spare:
                    job.issued = self._spare.pop()
            return job

    def issued(self, job: Job, issued: Issued) -> None:
        """Tell that a transfer is under way."""
        with self._lock:
            job.issued = issued
            job.after = None  # what a fence refers to need not live until the poll
            if job.direction is Direction.LOAD:
                job.end_s = self._load_ends.issued(len(job.copy.blocks), job.taken_s)
            if self._lost is None:
                self._under_way[job.direction].append(job)
            else:
                self._end(job, self._lost)

    def failed(self, job: Job, why: str) -> None:
        """Tell that a transfer came to nothing and that nothing of it moves any more."""
        with self._lock:
            self._end(job, why)

    def lose(self, why: str) -> None:
        """Tell that the device is lost: nothing moves any more, and nothing ever will. Said once."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = f"the GPU is lost: {why}"
            _LOG.error("%s; no more blocks are copied", self._lost)
            self._in_flight.close(self._lost)
            for under_way in self._under_way.values():
                while under_way:
                    self._end(under_way.popleft(), self._lost)

    def _look_until(self, reached: Callable[[], bool], timeout_s: float, pause_s: float = _LOOK_AGAIN_S) -> bool:
        """Look at events again and again, at most for `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._collect()
                if reached():
                    return True
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(pause_s)

    # ------------------------------------------------------------------ under the lock

    def _collect(self) -> None:
        """Look at the oldest transfers under way; those of one direction end in order."""
        try:
            for under_way in self._under_way.values():
                while under_way and (issued := under_way[0].issued) is not None and issued.end.query():
                    under_way[0].busy_s += issued.begin.elapsed_time(issued.end) / 1e3
                    self._ended(under_way.popleft(), issued)
        except Exception as error:
            self.lose(describe(error))

    def _look_who_has_begun(self, loads: Iterable[Job]) -> None:
        """Look which loads have begun: those that wait, for compute or for others, are over later."""
        free_s = time.monotonic()
        try:
            for job in loads:
                job.has_begun = job.has_begun or (job.issued is not None and job.issued.begin.query())
                if not job.has_begun:
                    job.end_s = max(job.end_s, self._load_ends.waits(len(job.copy.blocks), free_s))
                free_s = max(free_s, job.end_s)
        except Exception as error:
            self.lose(describe(error))

    def _ended(self, job: Job, issued: Issued) -> None:
        """All that was issued of a transfer has ended: it is done, or blocks are left that do not pack."""
        if job.rest is None:
            job.rest = self._sizes.rest_of(issued, may_copy=not self._in_flight.closed)
            if job.rest is not None and len(job.rest.blocks):
                self._give_back(job)
                self._in_flight.again(job)
                self._wanted[job.direction].notify()
                return
        if job.direction is Direction.LOAD and job.copy.blocks:
            self._load_ends.ended(len(job.copy.blocks), job.busy_s)
        self._in_flight.count(job, self._sizes.moved(len(job.copy.blocks), issued, job.rest), job.busy_s)
        self._end(job, None)

    def _end(self, job: Job, why: str | None) -> None:
        self._give_back(job)
        self._in_flight.end(job, why)

    def _give_back(self, job: Job) -> None:
        """Let the events of a job be used by others."""
        if job.issued is not None:
            self._spare.append(job.issued)
            job.issued = None
