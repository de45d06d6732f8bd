"""Host memory of one life and its copy engine, which is made and closed in a thread: pinned memory takes seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvtide.copy.arena import HostArena
from kvtide.copy.base import CopyEngine, Direction, Fence, Finished
from kvtide.core.messages import Copy, Pool
from kvtide.errors import describe

CLOSE_S = 60.0
"""So long an engine that has nothing under way may take to close. Unpinning takes seconds."""

Make = Callable[[HostArena], CopyEngine]


class Life:
    """From the memory being mapped to its being unmapped. Used by the thread that submits; owns the arena."""

    def __init__(self, pool: Pool, arena: HostArena, make: Make, say: Callable[[str], None]) -> None:
        self.pool = pool
        self.engine: CopyEngine | None = None
        """None until it is made, and if it cannot be."""
        self.in_flight: set[int] = set()
        """Taken, and not polled."""
        self.over = False
        """It takes no more copies."""
        self._arena = arena
        self._say = say
        self._closed = self._stuck = False
        self._thread = _started(lambda: self._made(make), "kvtide-open")

    @property
    def is_open(self) -> bool:
        """Whether it takes copies."""
        return self.engine is not None and not self.over

    @property
    def slots_ready(self) -> int:
        """How many slots copies may name."""
        if self.engine is None or self.over:
            return 0
        ready = self.engine.slots_ready()
        return self._arena.slots if ready is None else ready

    def submit(self, direction: Direction, copy: Copy, after: Fence | None) -> bool:
        """Take a copy, or one that is in flight once more."""
        assert self.engine is not None
        taken = self.engine.submit(direction, copy, after)
        if taken:
            self.in_flight.add(copy.id)
        return taken

    def poll(self) -> Finished:
        """Return what has ended since the last call."""
        if self.engine is None:
            return Finished()
        finished = self.engine.poll()
        self.in_flight.difference_update(finished.done, (id_ for id_, _ in finished.failed))
        return finished

    def end(self) -> bool:
        """Close when nothing is in flight, in the background; return whether that is done and all memory unmapped."""
        if self.in_flight or self._thread.is_alive():
            return False
        if not self._closed and not self._stuck:
            self._thread = _started(self._close_slowly, "kvtide-close")
        return self._closed

    def close(self, timeout_s: float) -> bool:
        """Close at once. Returns False if something still moves, or is being made."""
        deadline_s = time.monotonic() + timeout_s
        self.over = True
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and self._close(max(0.0, deadline_s - time.monotonic()))

    def _made(self, make: Make) -> None:
        try:
            self.engine = make(self._arena)
        except BaseException as error:  # told, and without an engine the rank has no slots
            self._say(f"nothing is copied to or from the node's memory: {describe(error)}")

    def _close_slowly(self) -> None:
        why = f"its copy engine did not close within {CLOSE_S:g} s"
        try:
            self._stuck = not self._close(CLOSE_S)
        except BaseException as error:
            self._stuck, why = True, describe(error)
        if self._stuck:
            self._say(f"the memory of an earlier life of the node stays mapped, and no other is used: {why}")

    def _close(self, timeout_s: float) -> bool:
        if not self._closed and (self.engine is None or self.engine.close(timeout_s)):
            self._arena.close()
            self._closed = True
        return self._closed


def _started(run: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=False)
    thread.start()
    return thread
