"""The segment files of one rank: their number never makes more bytes than the budget (F21)."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvtide.tiers.disk.aligned import pages
from kvtide.tiers.disk.file_io import IoMode
from kvtide.tiers.disk.layout import FILE_OVERHEAD_BYTES, OVERHEAD_BYTES, SegmentLayout
from kvtide.tiers.disk.segment import Owner, Segment, read_owner
from kvtide.tiers.record import BODY_BYTES_MAX

_log = logging.getLogger(__name__)
_NAME = re.compile(r"segment-(\d{8})")


class Found(NamedTuple):
    """A segment file, of whatever namespace."""

    number: int
    path: Path
    owner: Owner | None
    """None: it cannot be told."""
    cost_bytes: int

    @property
    def age(self) -> int:
        """Sorts files: what cannot be used first, then the oldest."""
        return -1 if self.owner is None else self.owner.first_sequence


def find_segments(folder: Path) -> Iterator[Found]:
    """Look for segment files, in any order."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if (match := _NAME.fullmatch(entry.name)) is not None:
                path = Path(entry.path)
                yield Found(int(match[1]), path, read_owner(path), cost_of(stat_of(entry)))


def stat_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return what the system says of a file, of a link itself if it leads nowhere. None: nothing."""
    for follow in (True, False):
        with contextlib.suppress(OSError):
            return entry.stat(follow_symlinks=follow)
    return None


def cost_of(stat: os.stat_result | None) -> int:
    """Return what a segment file takes of the budget."""
    if stat is None:
        return FILE_OVERHEAD_BYTES
    return max(stat.st_size, stat.st_blocks * 512) + FILE_OVERHEAD_BYTES


def trim(folder: Path, budget_bytes: int) -> None:
    """Delete the oldest segments of a folder that nobody uses, until it fits its share of the budget.

    Raises `OSError` if it does not, because segments cannot be deleted.
    """
    with os.scandir(folder) as entries:
        used = OVERHEAD_BYTES + sum(cost_of(stat_of(entry)) for entry in entries if _NAME.fullmatch(entry.name))
    if used <= budget_bytes:
        return
    kept: OSError | None = None
    for segment in sorted(find_segments(folder), key=lambda segment: segment.age):
        if used <= budget_bytes:
            return
        try:
            segment.path.unlink()
        except OSError as error:
            kept = error
            _log.warning("kvtide: a segment cannot be deleted and still takes room: %s", error)
        else:
            used -= segment.cost_bytes
    if used > budget_bytes and kept is not None:
        raise kept


class Segments:
    """Opens, makes and deletes segment files within a budget. Not locked: the store does that."""

    def __init__(self, folder: Path, namespace: bytes, layout: SegmentLayout, budget_bytes: int, mode: IoMode) -> None:
        self._folder = folder
        self._namespace = namespace
        self._layout = layout
        self._budget_bytes = budget_bytes
        self._mode = mode
        found = sorted(find_segments(folder), key=lambda segment: segment.age)
        _tell_unreadable(folder, [segment.path.name for segment in found if segment.owner is None])
        self._others = [segment for segment in found if segment.owner is None or segment.owner.namespace != namespace]
        """Segments of other namespaces, oldest first: not read, and the first to go."""
        self._ours = [
            segment for segment in found if segment.owner is not None and segment.owner.namespace == namespace
        ]
        self._cost_bytes = {segment.number: segment.cost_bytes for segment in found}
        self._used_bytes = OVERHEAD_BYTES + sum(self._cost_bytes.values())
        self._deleted: set[int] = set()
        owners = [segment.owner for segment in found if segment.owner is not None]
        self.namespaces = {owner.namespace for owner in owners}
        """Digests of those that had blocks here when the folder was opened."""
        self._next_sequence = max((owner.first_sequence + owner.layout.capacity for owner in owners), default=0)

    @property
    def used_bytes(self) -> int:
        """What is taken of the budget. May be asked without a lock."""
        return self._used_bytes

    def holds(self, size: int) -> bool:
        """Say whether a new segment has room for a body of `size` bytes."""
        return self._layout.first_page + pages(size) <= self._layout.last_page and size <= BODY_BYTES_MAX

    def open_all(self) -> Iterator[Segment]:
        """Return the segments of this namespace, oldest first."""
        for found in self._ours:
            assert found.owner is not None
            yield Segment(found.number, found.path, found.owner, self._mode)
        self._ours = []

    def add(self) -> Segment | None:
        """Make a segment, deleting those of other namespaces if need be.

        None: the budget is used up. Raises `OSError` when the disk has less than the budget.
        """
        while True:
            if self.used_bytes + self._layout.cost_bytes <= self._budget_bytes:
                try:
                    return self._make()
                except OSError:
                    if not self._others:
                        raise
            elif not self._others:
                return None
            found = self._others.pop(0)
            try:
                found.path.unlink(missing_ok=True)
            except OSError:
                if found.owner is not None:
                    raise
                continue  # whatever it is, it keeps its room and its name
            self._free(found.number)

    def _make(self) -> Segment:
        number = next(number for number in range(len(self._cost_bytes) + 1) if number not in self._cost_bytes)
        path = self._folder / f"segment-{number:08d}"
        self._cost_bytes[number] = self._layout.cost_bytes
        self._used_bytes += self._layout.cost_bytes
        segment = Segment(number, path, self._next_owner(), self._mode)
        try:
            segment.allocate()
            segment.begin(segment.owner)
        except OSError:
            path.unlink(missing_ok=True)
            self._free(number)
            raise
        return segment

    def reuse(self, segment: Segment) -> bool:
        """Empty a segment for new records. False: it has another size than segments have now."""
        if segment.layout != self._layout:
            return False
        segment.begin(self._next_owner())
        return True

    def delete(self, segment: Segment) -> None:
        """Delete the file of a segment. Its bytes count until it is released, and for good if this raises."""
        segment.path.unlink(missing_ok=True)
        self._deleted.add(segment.number)

    def release(self, segment: Segment) -> None:
        """Note that nobody uses a segment; if it was deleted, its bytes are free."""
        if segment.number in self._deleted:
            self._deleted.remove(segment.number)
            self._free(segment.number)

    def _free(self, number: int) -> None:
        self._used_bytes -= self._cost_bytes.pop(number)

    def sync(self) -> None:
        """Make deletions last."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _next_owner(self) -> Owner:
        owner = Owner(self._namespace, self._next_sequence, self._layout)
        self._next_sequence += self._layout.capacity
        return owner


def _tell_unreadable(folder: Path, names: list[str]) -> None:
    """Say which files are skipped, in one line however many there are."""
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        _log.warning("kvtide: skipped files that cannot be read as segments: %s%s in %s", names[0], more, folder)
