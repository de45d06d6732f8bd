"""Frames: what goes over the socket, and how a stream of bytes is cut into them.

A frame is a header of 16 bytes and a body. The header has a magic word, the kind of the frame, how many descriptors
come with it, a tag which an answer repeats, and the length of the body. It is the same in all versions of the
protocol, and so are the hello and the refusal: any two versions can tell each other why they do not get along.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from kvtide.node.errors import BadFrame

MAGIC = b"kvt\x01"
_HEADER = Struct("<4sBBxxII")
HEADER_BYTES = _HEADER.size
BODY_BYTES_MAX = 16 << 20
"""500,000 keys of 32 bytes: a prompt of a million tokens, of a model with eight groups."""
DESCRIPTORS_MAX = 16
"""With one frame. The kernel takes up to 253."""
TAGS = 1 << 32


class Kind(IntEnum):
    """What a frame is. From `FIRST_OF_INDEX` on, kinds belong to the index."""

    HELLO = 1
    """The first frame of who connects (`hello.py`)."""
    WELCOME = 2
    REFUSED = 3
    """The answer to a hello. After a refusal the node closes."""
    STATUS = 4
    """An operator asks how the node is; the answer has the same kind."""
    DRAINED = 5
    """A worker says that it copies nothing any more, nor will."""
    STOPPING = 6
    """The node is about to end."""
    CLEAR = 7
    """An operator wants all blocks of a namespace to be forgotten, by its name; the answer has the same kind."""
    NOTICE = 8
    """A line for the log of an engine, if its hello has said that it takes such."""


FIRST_OF_INDEX = 32


class Frame(NamedTuple):
    """One message."""

    kind: int
    body: bytes = b""
    tag: int = 0
    descriptors: tuple[int, ...] = ()
    """Who received them closes them. Who sends them keeps them open until the connection is closed."""


def header(frame: Frame) -> bytes:
    """Return what goes before the body."""
    kind, body, tag, descriptors = frame
    assert len(body) <= BODY_BYTES_MAX, f"{len(body)} bytes in a frame"
    assert len(descriptors) <= DESCRIPTORS_MAX, f"{len(descriptors)} descriptors with a frame"
    return _HEADER.pack(MAGIC, kind, len(descriptors), tag, len(body))


class Decoder:
    """Cuts bytes into frames, however they were split on their way. After a `BadFrame` nothing more can be had."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.body_bytes_max = body_bytes_max
        self._half = bytearray()
        """A frame that has begun and has not ended."""
        self._half_bytes = HEADER_BYTES
        """How long it has to be before more can be said about it."""
        self._half_descriptors = 0
        """How many may have come for it."""
        self._descriptors: list[int] = []

    @property
    def is_half(self) -> bool:
        """A frame has begun and has not ended."""
        return bool(self._half)

    def feed(self, data: bytes, descriptors: Sequence[int] = ()) -> list[Frame]:
        """Return the frames that end with this. Descriptors go to frames in the order in which they came."""
        self._descriptors += descriptors
        frames: list[Frame] = []
        try:
            self._cut(data, frames)
            # The kernel hands descriptors over with the bytes that they were sent with, never before.
            if len(self._descriptors) > self._half_descriptors:
                raise BadFrame("descriptors that no frame asked for")
        except BadFrame:
            for frame in frames:  # nobody will see them
                self._descriptors += frame.descriptors
            raise
        return frames

    def left(self) -> list[int]:
        """Return, once, the descriptors that came for frames which did not."""
        left, self._descriptors = self._descriptors, []
        return left

    def _cut(self, data: bytes, frames: list[Frame]) -> None:
        if self._half:
            self._half += data
            if len(self._half) < self._half_bytes:
                return
            data = bytes(self._half)
            self._half.clear()
        begin, end = 0, len(data)
        while end - begin >= HEADER_BYTES:
            magic, kind, descriptors, tag, length = _HEADER.unpack_from(data, begin)
            if magic != MAGIC or length > self.body_bytes_max or descriptors > DESCRIPTORS_MAX:
                raise BadFrame(_why(magic, length, self.body_bytes_max, descriptors))
            body, following = begin + HEADER_BYTES, begin + HEADER_BYTES + length
            if end < following:
                self._keep(data, begin, HEADER_BYTES + length, descriptors)
                return
            frames.append(Frame(kind, data[body:following], tag, self._taken(descriptors) if descriptors else ()))
            begin = following
        if begin == end:
            self._half_bytes, self._half_descriptors = HEADER_BYTES, 0
            return
        if not MAGIC.startswith(data[begin : begin + len(MAGIC)]):
            raise BadFrame(_why(data[begin:end], 0, 0, 0))
        self._keep(data, begin, HEADER_BYTES, DESCRIPTORS_MAX)

    def _keep(self, data: bytes, begin: int, nbytes: int, descriptors: int) -> None:
        self._half += memoryview(data)[begin:]
        self._half_bytes, self._half_descriptors = nbytes, descriptors

    def _taken(self, count: int) -> tuple[int, ...]:
        if len(self._descriptors) < count:
            raise BadFrame(f"a frame came with {len(self._descriptors)} of its {count} descriptors")
        taken = tuple(self._descriptors[:count])
        del self._descriptors[:count]
        return taken


def _why(magic: bytes, length: int, length_max: int, descriptors: int) -> str:
    if magic != MAGIC:
        return f"bytes that are no frame: {magic!r}"
    if length > length_max:
        return f"a frame of {length} bytes, and {length_max} are the most here"
    return f"a frame with {descriptors} descriptors, and {DESCRIPTORS_MAX} are the most"
