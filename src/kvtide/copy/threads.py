"""The copy engine for CPUs: a few threads that copy between numpy arrays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from kvtide.copy.arena import HostArena
from kvtide.copy.base import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.copy.in_flight import InFlight, Job
from kvtide.copy.move import BlockMover, Moved
from kvtide.copy.packed_move import PackedBlockMover
from kvtide.copy.packing.codec import Codec, compiled
from kvtide.copy.packing.trial import PackingTrial
from kvtide.copy.regions import DeviceCache
from kvtide.copy.slot_places import SlotPlaces
from kvtide.copy.unpacked import UnpackedRows
from kvtide.core.messages import Copy
from kvtide.errors import ConfigError, describe
from kvtide.options import parse_count

Mover = BlockMover | PackedBlockMover
_LOADS_FIRST = (Direction.LOAD, Direction.STORE)


class ThreadedCopyEngine(CopyEngine):
    """Copies in `threads` threads beside compute. At most `max_transfers` are in flight.

    Loads go first: a request waits for each of them, and nobody waits for a store.

    With `unpacked`, blocks are bfloat16 and packed: slots have the size of packed blocks, and what does not pack goes
    there. `codec` makes what packs, in a thread of the engine. `trial` decides whether blocks are packed after all.
    """

    def __init__(
        self,
        device: DeviceCache,
        arena: HostArena,
        *,
        threads: int = 1,
        max_transfers: int = 1024,
        unpacked: UnpackedRows | None = None,
        codec: Callable[[], Codec] = compiled,
        trial: PackingTrial | None = None,
    ) -> None:
        parse_count("threads", threads)
        parse_count("max_transfers", max_transfers)
        self._mover: Mover | None = (
            BlockMover(device, arena) if unpacked is None else PackedBlockMover(device, arena, unpacked, codec, trial)
        )
        self._trial = trial
        self._places = SlotPlaces(arena, unpacked, trial) if unpacked is not None else None
        self._changed = threading.Condition()
        self._in_flight = InFlight(Job, max_transfers)
        """Read and written under the condition's lock."""
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
            if not self._in_flight.add(direction, copy, after):
                return False
            self._changed.notify_all()
            return True

    def poll(self) -> Finished:
        """Return the transfers that ended since the last call. See `CopyEngine.poll`."""
        with self._changed:
            return self._in_flight.poll()

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until none of the transfers is under way. See `CopyEngine.wait`."""
        with self._changed:
            jobs = self._in_flight.find(ids)
            return self._changed.wait_for(lambda: all(job.ended for job in jobs), timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop the threads after the copies they are at. See `CopyEngine.close`."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._in_flight.close()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        self._mover = None  # its views keep the arena's memory from being given back
        return True

    @property
    def places(self) -> SlotPlaces | None:
        """Where the blocks of slots are. See `CopyEngine.places`."""
        return self._places

    def slots_ready(self) -> int | None:
        """Return how many slots there are by now. See `CopyEngine.slots_ready`."""
        return None if self._trial is None else self._trial.slots()

    def traffic(self, direction: Direction) -> Traffic:
        """Return what was moved in one direction so far."""
        with self._changed:
            return self._in_flight.traffic[direction]

    def _run(self, mover: Mover) -> None:
        """Copy until the engine is closed. No transfer, whatever it raises, ends the thread (F15)."""
        while (job := self._next()) is not None:
            begin_s = time.perf_counter()
            try:
                if job.after is not None:
                    job.after()
                    begin_s = time.perf_counter()
                moved = mover.move(job.direction, job.copy)
            except BaseException as error:  # even SystemExit: there is nobody behind this frame to tell
                self._finish(job, why=describe(error))
            else:
                self._finish(job, moved=moved, busy_s=time.perf_counter() - begin_s)

    def _next(self) -> Job | None:
        with self._changed:
            return self._in_flight.next(_LOADS_FIRST, self._changed)

    def _finish(self, job: Job, *, why: str | None = None, moved: Moved | None = None, busy_s: float = 0.0) -> None:
        with self._changed:
            if moved is not None:
                self._in_flight.count(job, moved, busy_s)
            self._in_flight.end(job, why)
            self._changed.notify_all()


def _started(run: Callable[[Mover], None], mover: Mover, name: str) -> threading.Thread:
    # Not a daemon: those are stopped at exit in the middle of whatever they do.
    thread = threading.Thread(target=run, args=(mover,), name=name, daemon=False)
    thread.start()
    return thread
