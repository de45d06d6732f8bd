"""The disk tier's backend: one rank's records in segment files of a fixed budget."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtide.errors import describe
from kvtide.tiers.backend import Backend
from kvtide.tiers.base import HIT, MISS, Item, KeyResult, TierKey, Verdict
from kvtide.tiers.disk.file_io import IoMode
from kvtide.tiers.disk.index import Index
from kvtide.tiers.disk.lock import FolderLock
from kvtide.tiers.disk.reader import Reader
from kvtide.tiers.disk.segment import Segment
from kvtide.tiers.disk.segments import Segments
from kvtide.tiers.disk.writer import Writer
from kvtide.tiers.log_once import LogOnce
from kvtide.tiers.record import Sealer, stored_key

_log = logging.getLogger(__name__)
_EVICTIONS_MAX = 1024
"""Segments that are tried for the room of one."""
_NO_ROOM = KeyResult(Verdict.THROTTLED, "all segments are in use")


@dataclass(slots=True)
class Run:
    """Records that lie one behind the other in one segment."""

    segment: Segment
    first_entry: int
    first_page: int
    positions: list[int] = field(default_factory=list)
    """Which items of the call these are."""


class DiskBackend(Backend):
    """Keeps records in segment files. When the budget is used up, the segment unused for longest is written anew."""

    looks_up_in_memory = True

    def __init__(
        self, segments: Segments, sealer: Sealer, lock: FolderLock, *, mode: IoMode, budget_bytes: int
    ) -> None:
        self._segments = segments
        self.sealer = sealer
        self._lock = lock
        self._budget_bytes = budget_bytes
        self._index = Index()
        self._reader = Reader(self._index, sealer, mode)
        self._writer = Writer(sealer, mode)
        self._reads = LogOnce(_log, f"reading {sealer.where}", meanwhile="what cannot be read is computed instead")
        self._writes = LogOnce(_log, f"writing to {sealer.where}", meanwhile="blocks are not kept there")
        self._appending = threading.Lock()
        # All that follows is read and written under this lock; what is under the index's lock is not waited for.
        self._active: Segment | None = None
        self._leaving: list[Segment] = []
        """Deleted while in use."""
        self._undeleted: list[Segment] = []
        """Still in the folder, though nobody knows what is in them: the next clear tries again."""
        self._complained = False
        for segment in segments.open_all():
            self._load(segment)

    @property
    def records(self) -> int:
        """How many records are known."""
        return len(self._index)

    def _load(self, segment: Segment) -> None:
        """Make an old segment's records known; the newest segment goes on being filled."""
        try:
            keys, entries = segment.load()
        except OSError as error:
            _log.warning("kvtide: a segment cannot be read, its blocks are misses: %s", error)
            keys, entries = [], []
        self._index.enter(segment)
        self._index.add(segment, keys, entries)
        self._active = segment

    # ------------------------------------------------------------------ calls

    def lookup(self, keys: Sequence[TierKey]) -> list[KeyResult]:
        """Say which keys are there."""
        return [HIT if known else MISS for known in self._index.known(list(map(stored_key, keys)))]

    def get(self, items: Sequence[Item]) -> list[KeyResult]:
        """Fill the buffers with verified bytes."""
        results = self._reader.get(items)
        _tell(self._reads, results, works=HIT in results)
        return results

    def put(self, items: Sequence[Item]) -> list[KeyResult]:
        """Keep bytes under their keys, at the end of the segment that is being filled."""
        known = self._index.use([stored_key(item.key) for item in items])
        results = [HIT] * len(items)
        for run in self._reserve(items, known, results):
            self._write(run, items, results)
        _tell(self._writes, results, works=not all(known))
        return results

    def clear(self) -> KeyResult:
        """Delete all segments of this namespace and rank."""
        with self._appending:
            self._active = None
            unclear, self._undeleted = [*self._undeleted, *self._index.clear()], []
            problems = [self._discard(segment) for segment in unclear]
            problems.append(_problem(self._segments.sync))
        return next((_failed(problem) for problem in problems if problem is not None), HIT)

    def close(self) -> None:
        """Let others in."""
        with self._appending:
            self._index.clear()
            self._active = None
        self._lock.close()

    def bytes_used(self) -> int:
        """Return what is taken on the disk: segments take all of their bytes when they are made."""
        return self._segments.used_bytes

    def bytes_budget(self) -> int:
        """Return what may be taken on the disk."""
        return self._budget_bytes

    # ------------------------------------------------------------------ putting

    def _write(self, run: Run, items: Sequence[Item], results: list[KeyResult]) -> None:
        chosen = [items[position] for position in run.positions]
        try:
            self._writer.write(run.segment, run.first_entry, run.first_page, chosen)
            entries = range(run.first_entry, run.first_entry + len(chosen))
            self._index.add(run.segment, [stored_key(item.key) for item in chosen], entries)
        except OSError as error:
            for position in run.positions:
                results[position] = _failed(error)
            with self._appending:
                run.segment.take_back(run.first_entry, run.first_page, len(chosen))
        finally:
            self._index.end_write(run.segment)

    def _reserve(self, items: Sequence[Item], known: Sequence[bool], results: list[KeyResult]) -> list[Run]:
        """Take room for the items that are not known. Where there is none, the result says so."""
        runs: list[Run] = []
        with self._appending:
            for position, item in enumerate(items):
                if known[position]:
                    continue
                segment = self._segment_for(item.buffer.nbytes)
                if isinstance(segment, KeyResult):
                    results[position] = segment
                    continue
                entry, page = segment.append(item.buffer.nbytes)
                if not runs or runs[-1].segment is not segment:
                    self._index.begin_write(segment)
                    runs.append(Run(segment, entry, page))
                runs[-1].positions.append(position)
        return runs

    def _segment_for(self, size: int) -> Segment | KeyResult:
        """Return a segment with room for a body of `size` bytes, or why there is none."""
        if self._active is not None and self._active.room_for(size):
            return self._active
        if not self._segments.holds(size):
            return KeyResult(Verdict.FAILED, f"{size} bytes are more than a segment of this store holds")
        if self._active is not None:
            self._active.finish()
            self._active = None
        segment = self._next_segment()
        if isinstance(segment, Segment):
            self._index.enter(segment)
            self._active = segment
        return segment

    def _next_segment(self) -> Segment | KeyResult:
        """Make a segment, or empty the one that was unused for longest."""
        self._release_idle()
        try:
            if (segment := self._segments.add()) is not None:
                return segment
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                return _failed(error)
            self._complain(error)
        for _ in range(_EVICTIONS_MAX):
            victim = self._index.victim()
            if victim is None:
                break
            emptied = self._emptied(victim)
            if emptied is not None:
                return emptied
        return _NO_ROOM

    def _emptied(self, victim: Segment) -> Segment | KeyResult | None:
        """Return a segment made of the room of another, or why there is none. None: try the next one."""
        try:
            victim.check_writable()
            if not self._index.evict(victim):
                return None
            if self._segments.reuse(victim):
                return victim
        except OSError as error:
            return _failed(error)
        # It has another size, from an earlier configuration.
        problem = self._discard(victim)
        if problem is not None:
            return _failed(problem)
        try:
            return self._segments.add()
        except OSError as error:
            return _failed(error)

    def _discard(self, segment: Segment) -> OSError | None:
        """Delete a segment that is out of the index. Its room is free when nobody uses it any more."""
        problem = _problem(lambda: self._segments.delete(segment))
        if problem is not None:
            self._undeleted.append(segment)
        elif segment not in self._leaving:
            self._leaving.append(segment)
        self._release_idle()
        return problem

    def _release_idle(self) -> None:
        idle = [segment for segment in self._leaving if self._index.idle(segment)]
        self._leaving = [segment for segment in self._leaving if segment not in idle]
        for segment in idle:
            self._segments.release(segment)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _log.warning(
                "kvtide: the disk of %s has less room than the tier's size: the tier goes on with what it has (%s)",
                self.sealer.where,
                error,
            )


def _tell(log: LogOnce, results: Sequence[KeyResult], *, works: bool) -> None:
    """Say in the log why a call failed, once. `works`: if none of its results did, that shows that all is well."""
    failure = next((result.why for result in results if result.verdict is Verdict.FAILED), None)
    if failure is not None:
        log.began(failure)
    elif works:
        log.over()


def _problem(do: Callable[[], None]) -> OSError | None:
    try:
        do()
    except OSError as error:
        return error
    return None


def _failed(error: OSError) -> KeyResult:
    return KeyResult(Verdict.FAILED, describe(error))
