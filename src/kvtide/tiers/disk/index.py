"""Which key is where, and what is in use. A hint: whatever is served is verified first."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvtide.tiers.disk.layout import CAPACITY_MAX
from kvtide.tiers.disk.segment import Segment


class Spot(NamedTuple):
    """Where a record is. Its segment stays what it is until the spot is given back."""

    segment: Segment
    entry: int


class Index:
    """Keys of published records, and the segments they are in. Every call is short and takes the one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locations: dict[bytes, int] = {}
        """Number of the segment and entry in one integer: there may be millions."""
        self._segments: dict[int, Segment] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._locations)

    def known(self, keys: Sequence[bytes]) -> list[bool]:
        """Say which keys are there."""
        with self._lock:
            return [key in self._locations for key in keys]

    def use(self, keys: Sequence[bytes]) -> list[bool]:
        """Say which keys are there, and count it as a use of their segments."""
        spots = self.borrow(keys)
        self.give_back(spots)
        return [spot is not None for spot in spots]

    def enter(self, segment: Segment) -> None:
        """Make a segment known."""
        with self._lock:
            self._segments[segment.number] = segment
            self._clock = max(self._clock, segment.last_used)

    def add(self, segment: Segment, keys: Iterable[bytes], entries: Iterable[int]) -> None:
        """Make records known, unless their segment is not any more: the store was cleared."""
        base = segment.number * CAPACITY_MAX
        with self._lock:
            if self._segments.get(segment.number) is segment:
                self._locations.update(zip(keys, (base + entry for entry in entries), strict=True))

    def borrow(self, keys: Sequence[bytes]) -> list[Spot | None]:
        """Find keys, and keep their segments from being emptied until the spots are given back."""
        spots: list[Spot | None] = []
        with self._lock:
            self._clock += 1
            for key in keys:
                location = self._locations.get(key)
                if location is None:
                    spots.append(None)
                    continue
                segment = self._segments[location // CAPACITY_MAX]
                segment.readers += 1
                segment.last_used = self._clock
                spots.append(Spot(segment, location % CAPACITY_MAX))
        return spots

    def give_back(self, spots: Iterable[Spot | None]) -> None:
        """End what `borrow` began."""
        with self._lock:
            for spot in spots:
                if spot is not None:
                    spot.segment.readers -= 1

    def forget(self, key: bytes, spot: Spot) -> None:
        """Make a key unknown, if it still is where it was found."""
        with self._lock:
            if self._locations.get(key) == spot.segment.number * CAPACITY_MAX + spot.entry:
                del self._locations[key]

    def begin_write(self, segment: Segment) -> None:
        """Keep a segment from being emptied."""
        with self._lock:
            segment.writers += 1

    def end_write(self, segment: Segment) -> None:
        """End what `begin_write` began."""
        with self._lock:
            self._clock += 1
            segment.writers -= 1
            segment.last_used = max(segment.last_used, self._clock)

    def victim(self) -> Segment | None:
        """Return the segment that nobody has used for longest. None: all are in use."""
        with self._lock:
            idle = [segment for segment in self._segments.values() if not segment.busy]
            return min(idle, key=lambda segment: segment.last_used, default=None)

    def evict(self, segment: Segment) -> bool:
        """Take out a segment with all its keys. False: somebody uses it by now."""
        with self._lock:
            if segment.busy:
                return False
            del self._segments[segment.number]
            base = segment.number * CAPACITY_MAX
            for key in segment.published_keys():
                location = self._locations.get(key, -1)
                if base <= location < base + CAPACITY_MAX:
                    del self._locations[key]
            return True

    def clear(self) -> list[Segment]:
        """Forget everything; return the segments that were known."""
        with self._lock:
            segments = list(self._segments.values())
            self._segments.clear()
            self._locations.clear()
            return segments

    def idle(self, segment: Segment) -> bool:
        """Say whether nobody uses a segment."""
        with self._lock:
            return not segment.busy
