"""The disk tier's backend: one rank's records in segment files of a fixed budget."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtide.errors import describe
from kvtide.tiers.backend import Backend
from kvtide.tiers.base import HIT, MISS, Item, Outcome, TierKey, Verdict
from kvtide.tiers.disk.files import IoMode
from kvtide.tiers.disk.folder import SegmentFolder
from kvtide.tiers.disk.index import Index
from kvtide.tiers.disk.lock import FolderLock
from kvtide.tiers.disk.reading import Reader
from kvtide.tiers.disk.segment import Segment
from kvtide.tiers.disk.writing import Writer
from kvtide.tiers.record import Sealer, stored_key

_log = logging.getLogger(__name__)
_EVICTIONS_MAX = 1024
"""Segments that are tried for the room of one."""
_NO_ROOM = Outcome(Verdict.THROTTLED, "all segments are in use")


@dataclass(slots=True)
class Run:
    """Records that lie one behind the other in one segment."""

    segment: Segment
    first_entry: int
    first_page: int
    positions: list[int] = field(default_factory=list)
    """Which items of the call these are."""


class DiskStore(Backend):
    """Keeps records in segment files. When the budget is used up, the segment unused for longest is written anew."""

    def __init__(
        self, folder: SegmentFolder, sealer: Sealer, lock: FolderLock, *, mode: IoMode, budget_bytes: int
    ) -> None:
        self._folder = folder
        self._sealer = sealer
        self._lock = lock
        self._budget_bytes = budget_bytes
        self._index = Index()
        self._reader = Reader(self._index, sealer, mode)
        self._writer = Writer(sealer, mode)
        self._appending = threading.Lock()
        # All that follows is read and written under this lock; what is under the index's lock is not waited for.
        self._active: Segment | None = None
        self._leaving: list[Segment] = []
        """Deleted while in use."""
        self._undeleted: list[Segment] = []
        """Still in the folder, though nobody knows what is in them: the next clear tries again."""
        self._complained = False
        for segment in folder.open_all():
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

    def lookup(self, keys: Sequence[TierKey]) -> list[Outcome]:
        """Say which keys are there. Looks at memory only."""
        return [HIT if known else MISS for known in self._index.known([stored_key(key) for key in keys])]

    def get(self, items: Sequence[Item]) -> list[Outcome]:
        """Fill the buffers with verified bytes."""
        return self._reader.get(items)

    def put(self, items: Sequence[Item]) -> list[Outcome]:
        """Keep bytes under their keys, at the end of the segment that is being filled."""
        known = self._index.use([stored_key(item.key) for item in items])
        outcomes = [HIT] * len(items)
        for run in self._reserve(items, known, outcomes):
            self._write(run, items, outcomes)
        return outcomes

    def remove(self, keys: Sequence[TierKey]) -> list[Outcome]:
        """Forget keys, also for the time after a restart."""
        outcomes = []
        for key in map(stored_key, keys):
            (spot,) = spots = self._index.borrow([key])
            outcome = HIT
            if spot is not None:
                self._index.forget(key, spot)
                try:
                    spot.segment.retract(spot.entry)
                except OSError as error:
                    outcome = _failed(error)
            self._index.give_back(spots)
            outcomes.append(outcome)
        return outcomes

    def clear(self) -> Outcome:
        """Delete all segments of this namespace and rank."""
        with self._appending:
            self._active = None
            unclear, self._undeleted = [*self._undeleted, *self._index.clear()], []
            problems = [self._discard(segment) for segment in unclear]
            problems.append(_problem(self._folder.sync))
        return next((_failed(problem) for problem in problems if problem is not None), HIT)

    def close(self) -> None:
        """Let others in."""
        with self._appending:
            self._index.clear()
            self._active = None
        self._lock.close()

    def corrupt_records(self) -> int:
        """Return how many records did not verify so far."""
        return self._sealer.corrupt_records

    def wrong_secret_records(self) -> int:
        """Return how many records could not be decrypted so far."""
        return self._sealer.wrong_secret_records

    def bytes_used(self) -> int:
        """Return what is taken on the disk: segments take all of their bytes when they are made."""
        return self._folder.used_bytes

    def bytes_budget(self) -> int:
        """Return what may be taken on the disk."""
        return self._budget_bytes

    # ------------------------------------------------------------------ putting

    def _write(self, run: Run, items: Sequence[Item], outcomes: list[Outcome]) -> None:
        chosen = [items[position] for position in run.positions]
        try:
            self._writer.write(run.segment, run.first_entry, run.first_page, chosen)
            entries = range(run.first_entry, run.first_entry + len(chosen))
            self._index.add(run.segment, [stored_key(item.key) for item in chosen], entries)
        except OSError as error:
            for position in run.positions:
                outcomes[position] = _failed(error)
            with self._appending:
                run.segment.take_back(run.first_entry, run.first_page, len(chosen))
        finally:
            self._index.end_write(run.segment)

    def _reserve(self, items: Sequence[Item], known: Sequence[bool], outcomes: list[Outcome]) -> list[Run]:
        """Take room for the items that are not known. Where there is none, the outcome says so."""
        runs: list[Run] = []
        with self._appending:
            for position, item in enumerate(items):
                if known[position]:
                    continue
                segment = self._segment_for(item.buffer.nbytes)
                if isinstance(segment, Outcome):
                    outcomes[position] = segment
                    continue
                entry, page = segment.append(item.buffer.nbytes)
                if not runs or runs[-1].segment is not segment:
                    self._index.begin_write(segment)
                    runs.append(Run(segment, entry, page))
                runs[-1].positions.append(position)
        return runs

    def _segment_for(self, size: int) -> Segment | Outcome:
        """Return a segment with room for a body of `size` bytes, or why there is none."""
        if self._active is not None and self._active.room_for(size):
            return self._active
        if not self._folder.holds(size):
            return Outcome(Verdict.FAILED, f"{size} bytes are more than a segment of this store holds")
        if self._active is not None:
            self._active.finish()
            self._active = None
        segment = self._next_segment()
        if isinstance(segment, Segment):
            self._index.enter(segment)
            self._active = segment
        return segment

    def _next_segment(self) -> Segment | Outcome:
        """Make a segment, or empty the one that was unused for longest."""
        self._release_idle()
        try:
            if (segment := self._folder.add()) is not None:
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

    def _emptied(self, victim: Segment) -> Segment | Outcome | None:
        """Return a segment made of the room of another, or why there is none. None: try the next one."""
        try:
            victim.check_writable()
            if not self._index.evict(victim):
                return None
            if self._folder.reuse(victim):
                return victim
        except OSError as error:
            return _failed(error)
        # It has another size, from an earlier configuration.
        problem = self._discard(victim)
        if problem is not None:
            return _failed(problem)
        try:
            return self._folder.add()
        except OSError as error:
            return _failed(error)

    def _discard(self, segment: Segment) -> OSError | None:
        """Delete a segment that is out of the index. Its room is free when nobody uses it any more."""
        problem = _problem(lambda: self._folder.delete(segment))
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
            self._folder.release(segment)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _log.warning(
                "kvtide: the disk has less room than the tier's size, which goes on with what it has: %s", error
            )


def _problem(do: Callable[[], None]) -> OSError | None:
    try:
        do()
    except OSError as error:
        return error
    return None


def _failed(error: OSError) -> Outcome:
    return Outcome(Verdict.FAILED, describe(error))
