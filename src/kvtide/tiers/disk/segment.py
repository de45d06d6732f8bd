"""One segment file: bodies are appended, headers are published once their bodies are written."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from kvtide.tiers.disk.aligned import PAGE, aligned, pages
from kvtide.tiers.disk.file_io import IoMode, drop_cached, open_file, read_all, write_all
from kvtide.tiers.disk.layout import SegmentLayout
from kvtide.tiers.record import FORMAT_VERSION, HEADER_BYTES, KEY_BYTES_MAX, MAGIC

_FIRST_PAGE = struct.Struct("<4sHH16sQIQ")
_CHECKSUM = struct.Struct("<Q")
_SEGMENT_MAGIC = b"KVsg"

_ENTRY = np.dtype(
    {
        "names": ["magic", "version", "key_bytes", "namespace", "key", "length", "sequence", "place"],
        "formats": ["<u4", "<u2", "u1", ("<u8", 2), f"V{KEY_BYTES_MAX}", "<u4", "<u8", "<u4"],
        "offsets": [0, 4, 7, 8, 24, 60, 80, 88],
        "itemsize": HEADER_BYTES,
    }
)
"""A record's header, as far as an index is made of it. Whoever serves a record verifies all of it."""


class Owner(NamedTuple):
    """What the first page of a segment says."""

    namespace: bytes
    first_sequence: int
    """Sequence of the first record; the others follow. Segments are written in this order."""
    layout: SegmentLayout

    def pack(self) -> memoryview:
        """Return the first page."""
        page = aligned(PAGE)
        raw = _FIRST_PAGE.pack(
            _SEGMENT_MAGIC,
            FORMAT_VERSION,
            0,
            self.namespace,
            self.first_sequence,
            self.layout.capacity,
            self.layout.size,
        )
        page[: len(raw)] = raw
        _CHECKSUM.pack_into(page, len(raw), xxhash.xxh3_64_intdigest(raw))
        return page


def read_owner(path: Path) -> Owner | None:
    """Return whose segment a file is. None: nobody's, or that cannot be told any more."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            raw, size = os.pread(file, _FIRST_PAGE.size + _CHECKSUM.size, 0), os.fstat(file).st_size
        finally:
            os.close(file)
        magic, version, _, namespace, first, capacity, segment_bytes = _FIRST_PAGE.unpack_from(raw)
        (checksum,) = _CHECKSUM.unpack_from(raw, _FIRST_PAGE.size)
    except (OSError, struct.error):
        return None
    layout = SegmentLayout(capacity, segment_bytes)
    good = checksum == xxhash.xxh3_64_intdigest(raw[: _FIRST_PAGE.size]) and magic == _SEGMENT_MAGIC
    if not good or version != FORMAT_VERSION or not layout.sound() or size != segment_bytes:
        return None
    return Owner(namespace, first, layout)


class Segment:
    """A segment file of this store's namespace.

    The file is open only while something is done with it: a large store has thousands of them, and a process may often
    have no more than a thousand files open. `readers`, `writers` and what is free are the store's, which looks at them
    under its lock.
    """

    def __init__(self, number: int, path: Path, owner: Owner, mode: IoMode) -> None:
        self.number = number
        self.path = path
        self.owner = owner
        self.layout = owner.layout
        self._mode = mode
        self.readers = self.writers = 0
        self.last_used = owner.first_sequence
        self.next_entry = 0
        self.next_page = self.layout.first_page
        self._table = aligned(self.layout.table_bytes)
        self._table_lock = threading.Lock()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        file = open_file(self.path, self._mode)
        try:
            yield file
        finally:
            os.close(file)

    @property
    def busy(self) -> bool:
        """Whether somebody reads or writes it."""
        return bool(self.readers or self.writers)

    # ------------------------------------------------------------------ a life

    def allocate(self) -> None:
        """Make the file and take all of its disk space, so that later writes find room."""
        # Not by direct I/O: where a file system cannot do it, the C library writes single bytes instead.
        file = open_file(self.path, IoMode.CACHED, create=True)
        try:
            os.posix_fallocate(file, 0, self.layout.size)
        finally:
            os.close(file)

    def check_writable(self) -> None:
        """Write what is there already. Raises `OSError`: then it is better not to forget anything."""
        with self._opened() as file:
            write_all(file, [self.owner.pack()], 0)

    def begin(self, owner: Owner) -> None:
        """Forget what is in it, and belong to `owner` from now on."""
        self.owner, self.last_used = owner, owner.first_sequence
        self.next_entry, self.next_page = 0, self.layout.first_page
        with self._table_lock, self._opened() as file:
            self._table[:] = bytes(self._table.nbytes)
            write_all(file, [owner.pack(), self._table], 0)

    def load(self) -> tuple[list[bytes], list[int]]:
        """Read the table; return the keys in it and the entries that they are at. Bodies are not looked at."""
        with self._table_lock, self._opened() as file:
            read_all(file, [self._table], PAGE)
            if self._mode is IoMode.BUFFERED:
                drop_cached(file, 0, 0)
        entries = self._entries()
        used = np.flatnonzero(self._valid(entries))
        if used.size:
            self.next_entry = int(used[-1]) + 1
            self.next_page = int(_ends(entries[used]).max())
        return _keys(entries[used]), used.tolist()

    def published_keys(self) -> list[bytes]:
        """Return the keys of all published records."""
        with self._table_lock:
            entries = self._entries()
            return _keys(entries[self._valid(entries)])

    def finish(self) -> None:
        """Nothing more is appended: its pages need not be in memory."""
        if self._mode is IoMode.BUFFERED:
            with contextlib.suppress(OSError), self._opened() as file:
                os.fdatasync(file)
                drop_cached(file, 0, 0)

    # ------------------------------------------------------------------ records

    def room_for(self, size: int) -> bool:
        """Say whether a body of `size` bytes can be appended."""
        return self.next_entry < self.layout.capacity and self.next_page + pages(size) <= self.layout.last_page

    def append(self, size: int) -> tuple[int, int]:
        """Take entry and page for a body."""
        place = self.next_entry, self.next_page
        self.next_entry += 1
        self.next_page += pages(size)
        return place

    def take_back(self, entry: int, page: int, count: int) -> None:
        """Use room again that `append` gave last, for `count` bodies that could not be written."""
        if self.next_entry == entry + count:
            self.next_entry, self.next_page = entry, page

    def header(self, entry: int) -> bytes:
        """Return a record's header as it was published."""
        return bytes(self._table[entry * HEADER_BYTES : (entry + 1) * HEADER_BYTES])

    def write(self, buffers: Sequence[memoryview], page: int) -> None:
        """Write bodies to consecutive pages. Buffers are aligned, unless the page cache is used."""
        if not buffers:
            return
        with self._opened() as file:
            write_all(file, buffers, page * PAGE)
            if self._mode is IoMode.BUFFERED:
                drop_cached(file, page * PAGE, sum(buffer.nbytes for buffer in buffers))

    def read(self, buffers: Sequence[memoryview], page: int) -> int:
        """Read consecutive pages; return how many bytes there were."""
        with self._opened() as file:
            count = read_all(file, buffers, page * PAGE)
            if self._mode is IoMode.BUFFERED:
                drop_cached(file, page * PAGE, pages(count) * PAGE)
        return count

    def publish(self, first: int, headers: Sequence[bytes]) -> None:
        """Write consecutive headers: from now on the records are there, also after a restart."""
        begin, end = first * HEADER_BYTES, (first + len(headers)) * HEADER_BYTES
        with self._table_lock, self._opened() as file:
            self._table[begin:end] = b"".join(headers)
            begin, end = begin // PAGE * PAGE, pages(end) * PAGE
            write_all(file, [self._table[begin:end]], PAGE + begin)

    def retract(self, entry: int) -> None:
        """Take a header back: the record is not there any more, also after a restart."""
        self.publish(entry, [bytes(HEADER_BYTES)])

    # ------------------------------------------------------------------ the table

    def _entries(self) -> npt.NDArray[np.void]:
        return np.frombuffer(self._table, _ENTRY, self.layout.capacity)

    def _valid(self, entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        """Say which entries look like records of this segment's owner: a hint, as an index is."""
        sequences = np.arange(self.layout.capacity, dtype=np.uint64) + np.uint64(self.owner.first_sequence)
        valid: npt.NDArray[np.bool_] = (
            (entries["magic"] == int.from_bytes(MAGIC, "little"))
            & (entries["version"] == FORMAT_VERSION)
            & (entries["namespace"] == np.frombuffer(self.owner.namespace, "<u8")).all(axis=1)
            & (entries["key_bytes"] <= KEY_BYTES_MAX)
            & (entries["sequence"] == sequences)
            & (entries["place"] >= self.layout.first_page)
            & (_ends(entries) <= self.layout.last_page)
        )
        return valid


def _ends(entries: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return the page behind each body."""
    ends: npt.NDArray[np.int64] = entries["place"].astype(np.int64) + -(-entries["length"].astype(np.int64) // PAGE)
    return ends


def _keys(entries: npt.NDArray[np.void]) -> list[bytes]:
    raw = entries["key"].tobytes()
    starts = range(0, len(raw), KEY_BYTES_MAX)
    return [raw[start : start + size] for start, size in zip(starts, entries["key_bytes"].tolist(), strict=True)]
