"""Pins a host arena in pieces, in the background, while the first pieces are already in use (F20)."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from kvtide.copy import libc
from kvtide.copy.arena import HostArena
from kvtide.copy.cuda.gpu import Gpu
from kvtide.copy.cuda.placement import Placement
from kvtide.errors import ConfigError, describe
from kvtide.options import parse_count
from kvtide.units import size_text

_LOG = logging.getLogger(__name__)
_PAGE_BYTES = 2 << 20
"""A huge page; pieces are whole ones, whether the arena has any or not."""
_MADV_POPULATE_WRITE = 23
_POPULATING_THREADS = 2
_LOOK_AGAIN_S = 0.01
FIRST_BYTES = 1 << 30
"""So much is pinned while the serving engine still starts."""


class Pinner:
    """Pins the arena from its first slot on, `piece_bytes` at a time. `pinned_bytes` only grows until `close`.

    What cannot be pinned, for want of memory or of permission, stays unused; `problem` then says why.

    A registration holds the driver's locks while it runs, so that kernel launches of other threads wait for it: small
    pieces keep those waits short. The pages are made before, outside of those locks.

    Whoever allocates memory or captures CUDA graphs waits for both all the same. So as long as the serving engine is
    `starting`, only the first `FIRST_BYTES` are pinned; the rest follows when it has `started`.
    """

    def __init__(
        self,
        gpu: Gpu,
        arena: HostArena,
        *,
        piece_bytes: int = 64 << 20,
        starting: bool = False,
        after: HostArena | None = None,
    ) -> None:
        """`after`: memory of which no page is made before all of the arena's are there."""
        parse_count("piece_bytes", piece_bytes)
        if piece_bytes % _PAGE_BYTES:
            raise ConfigError("piece_bytes", piece_bytes, f"a multiple of {_PAGE_BYTES}")
        self.piece_bytes = piece_bytes
        self.problem: str | None = None
        self.pinned_bytes = 0
        self._gpu = gpu
        self._slot_bytes = arena.slot_bytes
        self._size = arena.memory.nbytes
        self._memory: npt.NDArray[np.uint8] | None = arena.memory  # keeps the mapping
        self._address = int(arena.memory.ctypes.data)
        self._shared, self._share = arena.shared, arena.share
        self._pages_there = arena.pages_there
        self._after = after
        self._pages_seen = 0
        self._starting = starting
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvtide-pin", daemon=False)
        self._thread.start()

    @property
    def usable_slots(self) -> int:
        """Slots, from slot 0 on, that transfers may name."""
        return self.pinned_bytes // self._slot_bytes

    @property
    def is_complete(self) -> bool:
        """Whether all of it is pinned."""
        return self.pinned_bytes == self._size

    def started(self) -> None:
        """Hear that the serving engine has started."""
        self._starting = False

    def wait(self, timeout_s: float) -> bool:
        """Block until all is pinned that can be, at most `timeout_s`. Returns whether that came true."""
        return self._ended.wait(timeout_s)

    def stop(self) -> None:
        """Pin no more pieces."""
        self._stop.set()

    def close(self, timeout_s: float = 5.0) -> bool:
        """Unpin everything. Nothing may be moving. Returns False if a piece is still being pinned."""
        self.stop()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._unpin()
        self.pinned_bytes = 0
        self._memory = self._after = None
        return True

    def _unpin(self) -> None:
        pieces = range(self._address, self._address + self.pinned_bytes, self.piece_bytes)
        refusals = [why for why in map(self._unpin_piece, pieces) if why]
        if refusals:
            text = "%d pieces of host memory may stay pinned until this process ends: %s"
            _LOG.warning(text, len(refusals), refusals[0])

    def _unpin_piece(self, address: int) -> str:
        """Return why a registration cannot be taken back. A device that is lost refuses, and has given it up."""
        try:
            with self._gpu.active():
                self._gpu.unpin(address)
        except Exception as error:
            return describe(error)
        return ""

    def _run(self) -> None:
        spent_s = 0.0
        try:
            self._gpu.enter()
            placement = Placement(self._gpu, self._address, self._size, bind=not self._shared)
            with ThreadPoolExecutor(_POPULATING_THREADS, "kvtide-pages") as pool:
                while self.pinned_bytes < self._size and not self._stop.is_set() and threading.main_thread().is_alive():
                    if self._may_go_on() and self._has_pages():
                        begin_s = time.monotonic()
                        self._pin_piece(pool, placement)
                        spent_s += time.monotonic() - begin_s
                    else:
                        self._stop.wait(_LOOK_AGAIN_S)
        except BaseException as error:
            self.problem = describe(error)
            pinned, size = size_text(self.pinned_bytes), size_text(self._size)
            _LOG.warning("pinned %s of %s; the host tier stays at that: %s", pinned, size, self.problem)
        else:
            _LOG.info("pinned %s in %.1f s", size_text(self.pinned_bytes), spent_s)
            placement.tell()
        finally:
            self._ended.set()

    def _may_go_on(self) -> bool:
        return not self._starting or self.pinned_bytes < FIRST_BYTES

    def _has_pages(self) -> bool:
        """Whether the next piece may be touched: a node makes the pages of its memory itself."""
        needed = min(self.pinned_bytes + self.piece_bytes, self._size)
        if self._pages_seen < needed and (self._after is None or self._after.pages_there()):
            self._pages_seen = self._pages_there()
        return self._pages_seen >= needed

    def _pin_piece(self, pool: ThreadPoolExecutor, placement: Placement) -> None:
        begin = self._address + self.pinned_bytes
        piece_bytes = min(self.piece_bytes, self._size - self.pinned_bytes)
        list(pool.map(lambda thread: self._populate(begin, piece_bytes, thread), range(_POPULATING_THREADS)))
        self._gpu.pin(begin, piece_bytes)
        self.pinned_bytes += piece_bytes
        placement.made(begin, piece_bytes)

    def _populate(self, address: int, nbytes: int, thread: int) -> None:
        """Make one thread's pages of a piece. Most of the time of pinning goes here, and is no business of the driver.

        In short steps: each holds a lock of the process that other threads want when they allocate memory. Where there
        is too little memory, the pinning will say so.

        Processes that share the memory pin at the same time. Each begins elsewhere in the piece, and finds the rest
        made by the others: 16 GiB for 8 of them took 6.8 s on an H200's machine, and 13.2 s when all began together.
        """
        steps = range(0, nbytes, _PAGE_BYTES)
        first = len(steps) * self._share.index // self._share.count
        for at in (*steps[first:], *steps[:first])[thread::_POPULATING_THREADS]:
            libc.madvise(address + at, min(_PAGE_BYTES, nbytes - at), _MADV_POPULATE_WRITE)
