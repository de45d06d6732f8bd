"""The copy engine for CPUs: a few threads that copy between numpy arrays."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvtide.copy.arena import HostArena
from kvtide.copy.base import CopyEngine, Direction, Fence, Finished, Traffic, describe
from kvtide.copy.move import BlockMover
from kvtide.copy.regions import DeviceCache
from kvtide.core.wire import Copy
from kvtide.errors import ConfigError
from kvtide.options import parse_count

_ORPHAN_CHECK_S = 1.0


@dataclass(slots=True, eq=False)
class _Job:
    """One transfer, from submit to poll."""

    direction: Direction
    copy: Copy
    after: Fence | None
    ended: bool = False
    why: str | None = None
    """Why it failed; None while it runs and when it is done."""


class ThreadedCopyEngine(CopyEngine):
    """Copies in `threads` threads beside compute. At most `max_transfers` are in flight.

    Loads go first: a request waits for each of them, and nobody waits for a store.
    """

    def __init__(self, device: DeviceCache, arena: HostArena, *, threads: int = 1, max_transfers: int = 1024) -> None:
        parse_count("threads", threads)
        parse_count("max_transfers", max_transfers)
        self._mover: BlockMover | None = BlockMover(device, arena)
        self._max_transfers = max_transfers
        self._changed = threading.Condition()
        # All that follows is read and written under the condition's lock.
        self._jobs: dict[int, _Job] = {}
        self._ended: list[_Job] = []
        self._queues: dict[Direction, deque[_Job]] = {Direction.LOAD: deque(), Direction.STORE: deque()}
        self._traffic = dict.fromkeys(Direction, Traffic())
        self._closed = False
        self._threads: list[threading.Thread] = []
        try:
            for index in range(threads):
                self._threads.append(_started(self._run, self._mover, f"kvtide-copy-{index}"))
        except RuntimeError as error:
            self.close()
            raise ConfigError("threads", threads, f"as many as the system can start ({error})") from error

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        """Queue a transfer. See `CopyEngine.submit`."""
        with self._changed:
            if copy.id in self._jobs:
                return True
            if self._closed or len(self._jobs) >= self._max_transfers:
                return False
            job = _Job(direction, copy, after)
            self._jobs[copy.id] = job
            self._queues[direction].append(job)
            self._changed.notify_all()
            return True

    def poll(self) -> Finished:
        """Return the transfers that ended since the last call. See `CopyEngine.poll`."""
        with self._changed:
            ended, self._ended = self._ended, []
            for job in ended:
                del self._jobs[job.copy.id]
        return Finished(
            done=tuple(job.copy.id for job in ended if job.why is None),
            failed=tuple((job.copy.id, job.why) for job in ended if job.why is not None),
        )

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until none of the transfers is under way. See `CopyEngine.wait`."""
        with self._changed:
            jobs = [self._jobs[id_] for id_ in ids if id_ in self._jobs]
            return self._changed.wait_for(lambda: all(job.ended for job in jobs), timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop the threads after the copies they are at. See `CopyEngine.close`."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._closed = True
            for queue in self._queues.values():
                for job in queue:
                    self._end(job, "the copy engine was closed before the copy began")
                queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        self._mover = None  # its views keep the arena's memory from being given back
        return True

    def traffic(self, direction: Direction) -> Traffic:
        """Return what was moved in one direction so far."""
        with self._changed:
            return self._traffic[direction]

    def _run(self, mover: BlockMover) -> None:
        """Copy until the engine is closed. No transfer, whatever it raises, ends the thread (F15)."""
        while (job := self._next_job()) is not None:
            begin_s = time.perf_counter()
            try:
                if job.after is not None:
                    job.after()
                    begin_s = time.perf_counter()
                mover.move(job.direction, job.copy)
            except BaseException as error:  # even SystemExit: there is nobody behind this frame to tell
                self._finish(job, why=describe(error))
            else:
                moved_bytes = mover.block_bytes * len(job.copy.blocks)
                self._finish(job, moved_bytes=moved_bytes, busy_s=time.perf_counter() - begin_s)

    def _next_job(self) -> _Job | None:
        """Wait for something to do. None: the engine is closed, or the program ends without closing it."""
        orphaned = False
        with self._changed:
            while not self._closed:
                for queue in self._queues.values():
                    if queue:
                        return queue.popleft()
                if orphaned:
                    self._closed = True  # who still submits is refused, rather than waiting forever
                    break
                # The interpreter waits for this thread before it exits, so the thread has to notice by itself.
                orphaned = not self._changed.wait(_ORPHAN_CHECK_S) and not threading.main_thread().is_alive()
        return None

    def _finish(self, job: _Job, *, why: str | None = None, moved_bytes: int = 0, busy_s: float = 0.0) -> None:
        with self._changed:
            if why is None:
                before = self._traffic[job.direction]
                self._traffic[job.direction] = Traffic(
                    before.transfers + 1, before.bytes + moved_bytes, before.busy_s + busy_s
                )
            self._end(job, why)
            self._changed.notify_all()

    def _end(self, job: _Job, why: str | None) -> None:
        job.ended = True
        job.why = why
        job.after = None  # what a fence refers to need not live until the poll
        self._ended.append(job)


def _started(run: Callable[[BlockMover], None], mover: BlockMover, name: str) -> threading.Thread:
    # Not a daemon: those are stopped at exit in the middle of whatever they do.
    thread = threading.Thread(target=run, args=(mover,), name=name, daemon=False)
    thread.start()
    return thread
