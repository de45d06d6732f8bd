"""Which transfers are in flight, from submit to poll: the books that copy engines with threads share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvtide.copy.base import Direction, Fence, Finished, Traffic
from kvtide.copy.move import Moved
from kvtide.core.messages import Copy

_ORPHAN_CHECK_S = 1.0


@dataclass(slots=True, eq=False)
class Job:
    """One transfer. Engines derive their own from it if they have more to say."""

    direction: Direction
    copy: Copy
    after: Fence | None
    ended: bool = False
    why: str | None = None
    """Why it failed; None while it runs and when it is done."""
    not_kept: tuple[int, ...] = ()
    """Of a store that is done: slots that there was no place for."""


JobT = TypeVar("JobT", bound=Job)


class InFlight(Generic[JobT]):
    """The transfers in flight, at most `max_transfers`. Whoever calls holds the lock of the engine."""

    def __init__(self, make_job: Callable[[Direction, Copy, Fence | None], JobT], max_transfers: int) -> None:
        self.traffic = dict.fromkeys(Direction, Traffic())
        self.closed = False
        """No more are taken."""
        self._make_job = make_job
        self._max_transfers = max_transfers
        self._jobs: dict[int, JobT] = {}
        self._ended: list[JobT] = []
        self._queues: dict[Direction, deque[JobT]] = {direction: deque() for direction in Direction}

    def add(self, direction: Direction, copy: Copy, after: Fence | None) -> bool:
        """Queue a transfer; False if it is refused. One that is in flight already is not queued again."""
        if copy.id in self._jobs:
            return True
        if self.closed or len(self._jobs) >= self._max_transfers:
            return False
        job = self._make_job(direction, copy, after)
        self._jobs[copy.id] = job
        self._queues[direction].append(job)
        return True

    def poll(self) -> Finished:
        """Return the transfers that ended since the last call, and forget them."""
        ended, self._ended = self._ended, []
        for job in ended:
            del self._jobs[job.copy.id]
        return Finished(
            done=tuple(job.copy.id for job in ended if job.why is None),
            failed=tuple((job.copy.id, job.why) for job in ended if job.why is not None),
            not_kept=tuple((job.copy.id, job.not_kept) for job in ended if job.not_kept and job.why is None),
        )

    def find(self, ids: Iterable[int] | None) -> list[JobT]:
        """Return those of the transfers that are in flight. None: all that are."""
        return [self._jobs[id_] for id_ in (self._jobs if ids is None else ids) if id_ in self._jobs]

    def next(self, directions: Sequence[Direction], wanted: threading.Condition) -> JobT | None:
        """Wait for something to do, the first direction first.

        None: the engine is closed, or the program ends without closing it. `wanted` is a condition of the engine's
        lock, notified when a transfer was added or the engine was closed.
        """
        orphaned = False
        while not self.closed:
            for direction in directions:
                if self._queues[direction]:
                    return self._queues[direction].popleft()
            if orphaned:
                self.closed = True  # who still submits is refused, rather than waiting forever
                break
            # The interpreter waits for this thread before it exits, so the thread has to notice by itself.
            orphaned = not wanted.wait(_ORPHAN_CHECK_S) and not threading.main_thread().is_alive()
        return None

    def again(self, job: JobT) -> None:
        """Queue what is left of a transfer, before all others."""
        self._queues[job.direction].appendleft(job)

    def count(self, job: JobT, moved: Moved, busy_s: float) -> None:
        """Add a transfer that is done to the traffic of its direction."""
        before = self.traffic[job.direction]
        self.traffic[job.direction] = Traffic(
            before.transfers + 1,
            before.bytes + moved.nbytes,
            before.seconds.plus(busy_s),
            before.saved_bytes + moved.saved_bytes,
            before.unpacked_blocks + moved.unpacked_blocks,
        )
        job.not_kept = moved.not_kept

    def end(self, job: JobT, why: str | None) -> None:
        """Say that a transfer is done, or why it failed: the next poll reports it."""
        job.ended, job.why = True, why
        job.after = None  # what a fence refers to need not live until the poll
        self._ended.append(job)

    def close(self, why: str = "the copy engine was closed before the copy began") -> None:
        """Take no more transfers, and fail those that no thread has taken."""
        self.closed = True
        for queue in self._queues.values():
            while queue:
                self.end(queue.popleft(), why)
