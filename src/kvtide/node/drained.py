"""What a worker says when its copies have ended: numbers of members, its own and those of its earlier connections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from struct import Struct

from kvtide.node.errors import BadFrame
from kvtide.node.frames import Frame, Kind

NUMBERS_MAX = 1000
"""In one frame."""
_NUMBER = Struct("<Q")


def drained_frames(members: Iterable[int]) -> Iterator[Frame]:
    """Yield the frames that say it."""
    left = iter(members)
    while numbers := list(islice(left, NUMBERS_MAX)):
        yield Frame(Kind.DRAINED, b"".join(map(_NUMBER.pack, numbers)))


def read_drained(frame: Frame) -> list[int]:
    """Return the members. Raises `BadFrame`."""
    if len(frame.body) % _NUMBER.size or len(frame.body) > NUMBERS_MAX * _NUMBER.size:
        raise BadFrame(f"numbers of members in {len(frame.body)} bytes")
    return [number for (number,) in _NUMBER.iter_unpack(frame.body)]
