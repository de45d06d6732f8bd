"""The disk below a folder: room, direct I/O, and speed by a short measurement of which nothing is left."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvtide.doctor.base import Finding, bad, ok, warning
from kvtide.tiers.disk.aligned import PAGE, aligned
from kvtide.tiers.disk.file_io import IoMode, drop_cached, open_file, read_all, write_all
from kvtide.tiers.disk.store_folder import used_bytes
from kvtide.units import size_text

PIECE_BYTES = 4 << 20
"""As much as a tier reads in one call."""
MEASURED_BYTES_MAX = 256 << 20
SECONDS_MAX = 1.0
"""In each direction."""
_GB = 1e9
SLOW_BYTES_PER_S = 0.5 * _GB
FREE_SHARE_MIN = 0.05
_MEASURED_SHARE = 20
"""At most one part in so many of the room is taken for a moment."""
_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)
"""How file systems say that they have no direct I/O."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to look at."""

    folder: Path
    size: int | None = None
    """What a tier may take there. None: no tier is to be there, so that nothing about it is wrong."""
    io: str = "auto"
    """The tier's option."""


def check_space(place: Place) -> Finding:
    """Say how much room there is, and what a tier would leave of it."""
    try:
        disk = os.statvfs(place.folder)
        held = used_bytes(place.folder) if place.size is not None else 0
    except OSError as error:
        return _unusable(place, error)
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    found = f"{size_text(free)} of {size_text(total)} free at {place.folder}"
    if place.size is None:
        return ok(found)
    found += f"; the tier holds {size_text(held)}, and takes {size_text(place.size)} at most"
    if free + held - place.size < FREE_SHARE_MIN * total:
        return warning(
            found, "make room, or the tier's size smaller: on a disk that is nearly full, writes are slow or fail"
        )
    return ok(found)


def check_direct_io(place: Place) -> Finding:
    """Try whether files can be read past the page cache."""
    try:
        with scratch(place.folder, IoMode.DIRECT) as file:
            page = aligned(PAGE)
            write_all(file, [page], 0)
            works = read_all(file, [page], 0) == PAGE
    except OSError as error:
        if error.errno not in _NOT_DIRECT:
            return _unusable(place, error)
        works = False
    return judge_direct_io(place, works)


def judge_direct_io(place: Place, works: bool) -> Finding:
    """Say what it means that files can or cannot be read past the page cache."""
    if works:
        return ok(f"works at {place.folder}")
    found = f"does not work at {place.folder}"
    if place.size is None:
        return ok(found)
    advice = (
        "use a folder on ext4 or XFS on a local disk: through the page cache, blocks take memory and time of the engine"
    )
    return bad(found, f'leave out "io": "direct", or {advice}') if place.io == "direct" else warning(found, advice)


def check_speed(place: Place) -> Finding:
    """Write a little, read it back, and say how fast that was, one piece of 4 MiB after the other."""
    try:
        speeds = measure(place)
    except OSError as error:
        return _unusable(place, error)
    if speeds is None:
        return ok(f"not measured: too little room for that at {place.folder}")
    return judge_speed(place, *speeds)


def judge_speed(place: Place, written: float, read: float) -> Finding:
    """Say whether these are enough bytes a second."""
    found = f"writes {_rate_text(written)}, reads {_rate_text(read)} at {place.folder}"
    if place.size is not None and min(written, read) < SLOW_BYTES_PER_S:
        return warning(
            found,
            f"use an NVMe disk: below {_rate_text(SLOW_BYTES_PER_S)} a GPU often computes faster than the disk reads. "
            "kvtide notices, and computes; the tier brings little then",
        )
    return ok(found)


def measure(place: Place) -> tuple[float, float] | None:
    """Return the bytes a second that are written and read in a folder. None: there is no room to. Raises OSError."""
    room = os.statvfs(place.folder)
    pieces = min(MEASURED_BYTES_MAX, room.f_bavail * room.f_frsize // _MEASURED_SHARE) // PIECE_BYTES
    if not pieces:
        return None
    if place.io in ("auto", "direct"):
        try:
            return _measure(place.folder, IoMode.DIRECT, pieces)
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
    return _measure(place.folder, IoMode.BUFFERED, pieces)


def _measure(folder: Path, mode: IoMode, pieces: int) -> tuple[float, float]:
    piece = aligned(PIECE_BYTES)
    piece[:] = os.urandom(PIECE_BYTES)  # some file systems compress
    with scratch(folder, mode) as file:
        begin_s = time.perf_counter()
        done = 0
        while done < pieces and time.perf_counter() - begin_s < SECONDS_MAX:
            write_all(file, [piece], done * PIECE_BYTES)
            if mode is not IoMode.DIRECT:
                os.fdatasync(file)  # each of them, or a slow disk would have all of them to write in the end
            done += 1
        written_s = time.perf_counter() - begin_s
        drop_cached(file, 0, done * PIECE_BYTES)
        begin_s = time.perf_counter()
        read = 0
        while read < done and time.perf_counter() - begin_s < SECONDS_MAX:
            read_all(file, [piece], read * PIECE_BYTES)
            read += 1
        read_s = time.perf_counter() - begin_s
    return done * PIECE_BYTES / max(written_s, 1e-9), read * PIECE_BYTES / max(read_s, 1e-9)


@contextmanager
def scratch(folder: Path, mode: IoMode) -> Iterator[int]:
    """Lend a file that has no name any more when it is used: whatever happens, the system removes it."""
    made, name = tempfile.mkstemp(prefix="kvtide-doctor-", dir=folder)
    try:
        file = open_file(Path(name), mode)
    finally:
        os.close(made)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    try:
        yield file
    finally:
        os.close(file)


def _unusable(place: Place, error: OSError) -> Finding:
    why = error.strerror or str(error)
    if place.size is None:
        return ok(f"not tried: {why} at {place.folder}, where no tier is to be")
    return bad(
        f"{place.folder} cannot be used: {why}",
        "choose a folder on a local disk with room in it that this user can write, or fix this one",
    )


def _rate_text(bytes_per_s: float) -> str:
    return f"{bytes_per_s / _GB:.2g} GB/s" if bytes_per_s >= _GB else f"{bytes_per_s / 1e6:.3g} MB/s"
