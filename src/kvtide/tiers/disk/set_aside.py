"""Stores of another format, or whose format cannot be told: kept beside the new one until it needs their room.

PATH/format-2/kvtide-store.json    what was PATH/kvtide-store.json
PATH/format-2/rank-0-of-1/…        what was PATH/rank-0-of-1
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from kvtide.tiers.disk.file_io import FOLDER_MODE
from kvtide.tiers.disk.lock import Held, holder
from kvtide.tiers.disk.store_folder import FORMAT_NAME, rank_folders, remove_store, used_bytes
from kvtide.tiers.record import FORMAT_VERSION
from kvtide.units import size_text

_NAME = re.compile(r"format-(\d+|unknown)(-\d+)?")
_ASIDE_MAX = 10_000
_log = logging.getLogger(__name__)


def set_aside(root: Path, found: int | None) -> None:
    """Move all that belongs to a store of another format into a folder of its own. Raises `Held` if it is in use.

    Whatever else is in the folder stays where it is, and nothing is overwritten.
    """
    folders = list(rank_folders(root))
    for folder in folders:
        if (pid := holder(folder.path)) is not None:
            raise Held(pid)
    shown = found or "unknown"
    ends = ("", *(f"-{number}" for number in range(2, _ASIDE_MAX)))
    aside = next(path for end in ends if not (path := root / f"format-{shown}{end}").exists())
    aside.mkdir(FOLDER_MODE)
    for path in [*(folder.path for folder in folders), root / FORMAT_NAME]:  # the last one says that all are moved
        path.rename(aside / path.name)
    _log.warning(
        "kvtide: the store in %s has format %s, and this version of kvtide has %d: it is not read, and the tier starts "
        "empty. It was moved to %s (%s), where it stays until its room is needed; `kvtide tier clear %s` removes it",
        root,
        shown,
        FORMAT_VERSION,
        aside,
        size_text(used_bytes(aside)),
        aside,
    )


def stores_aside(root: Path) -> Iterator[Path]:
    """Find what was set aside, the oldest first."""
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and (path / FORMAT_NAME).is_file()]
    yield from sorted(found, key=lambda path: path.stat().st_mtime)


def with_aside(root: Path) -> list[Path]:
    """Return a store, and before it what was set aside in its folder."""
    return [*stores_aside(root), root]


def room(root: Path) -> int:
    """Return what a store may take: what the disk has left, and what it has of it already, set aside or not."""
    disk = os.statvfs(root)
    return disk.f_bavail * disk.f_frsize + sum(map(used_bytes, with_aside(root)))


def drop_if_room_is_needed(root: Path, size_bytes: int) -> None:
    """Remove what was set aside, as long as the disk has not the whole budget for the store."""
    for aside in stores_aside(root):
        disk = os.statvfs(root)
        if disk.f_bavail * disk.f_frsize + used_bytes(root) >= size_bytes:
            return
        _log.warning("kvtide: removes %s, a store of another format: its room is needed", aside)
        remove_store(aside)
