"""A copy engine whose host memory comes and goes: it is kept by a node, and each life of the way there has its own."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from kvtide.copy.arena import HostArena
from kvtide.copy.base import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.copy.life import Life
from kvtide.core.messages import Copy, Pool

IDLE_S = 1.0
"""An engine that has not said for so long which life there is rests."""


class HostMemory(Protocol):
    """Where host memory comes from. Nothing here raises, or waits longer than a moment."""

    def join(self, pool: Pool) -> HostArena | None:
        """Return the memory of a life. None: it is not there yet; ask again."""

    def is_gone(self) -> bool:
        """Whether nobody keeps the memory that was joined last any more."""

    def drained(self) -> None:
        """Nothing is or will be copied to or from the memory that was joined last: it may be given to others."""

    def close(self) -> None:
        """Join no more."""


class LivesCopyEngine(CopyEngine):
    """Copies by a copy engine that `make` makes for the memory of each life; one life at a time.

    `use` says which life there is. One that is over takes no more copies. When those under way have ended, its engine
    is closed and its memory unmapped, which `memory` is told, and only then the next one is joined: nobody should have
    the memory of a dead node beside that of the next. Engines are made and closed in a thread, for pinned memory takes
    seconds, and no step has to wait for that.

    A copy of another life than the present one fails, and moves nothing. `say` hears why an engine cannot be made.

    A serving engine that rests says nothing of lives. So that it does not keep the memory of a dead node, which the
    next one may need, a thread looks after that meanwhile.
    """

    def __init__(self, memory: HostMemory, make: Callable[[HostArena], CopyEngine], say: Callable[[str], None]) -> None:
        self._memory = memory
        self._make = make
        self._say = say
        self._pool: Pool | None = None
        """What `use` said last."""
        self._life: Life | None = None
        self._failed: dict[int, str] = {}
        """Copies of other lives, until the next poll."""
        self._past = dict.fromkeys(Direction, Traffic())
        """What was moved in lives that are over."""
        self._compute = False
        self._closed = False
        self._lock = threading.RLock()
        """For what the thread below does, too: `_life` and `_pool`."""
        self._used_s = time.monotonic()
        self._watch_thread = threading.Thread(target=self._watch, name="kvtide-watch", daemon=False)
        self._ends = threading.Event()

    # ------------------------------------------------------------------ lives

    def use(self, pool: Pool | None) -> None:
        """Begin another life, or none. See `CopyEngine.use`."""
        with self._lock:
            self._used_s = time.monotonic()
            self._turn_to(pool)

    def _turn_to(self, pool: Pool | None) -> None:
        self._pool = pool
        if self._life is not None and self._life.pool != pool:
            self._life.over = True
        self._go_on()

    @property
    def life(self) -> int:
        """The life whose memory is there; 0: none."""
        life = self._life
        return life.pool.life if life is not None and life.is_open else 0

    def slots_ready(self) -> int | None:
        """Return how many slots of the present life can be used: none without one."""
        life = self._life
        return 0 if life is None else life.slots_ready

    def _go_on(self) -> None:
        """Do what can be done by now: let a life that is over go, and begin the next one."""
        if self._life is not None and self._life.over and self._life.end():
            self._past = {direction: self.traffic(direction) for direction in Direction}
            self._life = None
            self._memory.drained()
        if self._life is None and self._pool is not None and not self._closed:
            arena = self._memory.join(self._pool)
            if arena is not None:
                self._life = Life(self._pool, arena, self._made, self._say)
                if self._watch_thread.ident is None:
                    self._watch_thread.start()

    def _watch(self) -> None:
        """Let go of a dead node's memory while the engine rests."""
        while not self._ends.wait(IDLE_S) and threading.main_thread().is_alive():
            with self._lock:
                rests = not self._closed and time.monotonic() - self._used_s >= IDLE_S
                if rests and self._life is not None and (self._life.over or self._memory.is_gone()):
                    self._turn_to(None)

    def _made(self, arena: HostArena) -> CopyEngine:
        engine = self._make(arena)
        engine.share(compute=self._compute)
        engine.started()  # lives begin with a plan
        return engine

    # ------------------------------------------------------------------ the interface of copy engines

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        """Take a transfer of the present life; one of another fails. See `CopyEngine.submit`."""
        with self._lock:
            life = self._life
            if self._closed:
                return False
            if life is not None and copy.life == life.pool.life and (life.is_open or copy.id in life.in_flight):
                return life.submit(direction, copy, after)
            self._failed[copy.id] = f"this rank has no memory of life {copy.life}"
            return True

    def poll(self) -> Finished:
        """Return the transfers that ended since the last call. See `CopyEngine.poll`."""
        with self._lock:
            finished = Finished() if self._life is None else self._life.poll()
            failed, self._failed = self._failed, {}
            self._go_on()
        return finished._replace(failed=(*finished.failed, *failed.items()))

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until none of the transfers is under way. See `CopyEngine.wait`."""
        engine = self._engine
        return engine is None or engine.wait(ids, timeout_s)

    def certain(self, within_s: float = math.inf) -> Mapping[int, Fence]:
        """Return the loads that only the loss of the device can stop. See `CopyEngine.certain`."""
        engine = self._engine
        return {} if engine is None else engine.certain(within_s)

    def wait_certain(self, ids: Iterable[int], timeout_s: float) -> bool:
        """Block until each of the transfers is certain or has ended. See `CopyEngine.wait_certain`."""
        engine = self._engine
        return engine is None or engine.wait_certain(ids, timeout_s)

    def share(self, *, compute: bool) -> None:
        """Tell whether the device computes. See `CopyEngine.share`."""
        self._compute = compute
        engine = self._engine
        if engine is not None:
            engine.share(compute=compute)

    def device_memory_goes(self) -> None:
        """Tell that device memory may lose its content. See `CopyEngine.device_memory_goes`."""
        engine = self._engine
        if engine is not None:
            engine.device_memory_goes()

    @property
    def lost(self) -> str | None:
        """Why nothing can be copied any more. See `CopyEngine.lost`."""
        engine = self._engine
        return None if engine is None else engine.lost

    def traffic(self, direction: Direction) -> Traffic:
        """Return what was moved in one direction, in all lives."""
        with self._lock:
            past, engine = self._past[direction], self._engine
            return past if engine is None else past.plus(engine.traffic(direction))

    def close(self, timeout_s: float = 5.0) -> bool:
        """Close the engine of the present life, and let its memory go. See `CopyEngine.close`."""
        self._ends.set()
        if self._watch_thread.ident is not None:
            self._watch_thread.join(timeout_s)
        with self._lock:
            self._closed = True
            if self._life is not None and not self._life.close(timeout_s):
                return False
            self._memory.drained()
            self._memory.close()
            return True

    @property
    def _engine(self) -> CopyEngine | None:
        life = self._life  # the thread may let go of it meanwhile
        return None if life is None else life.engine
