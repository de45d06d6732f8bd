"""A rank moves into the folder that people named, and the whole store fits its budget from then on."""

from __future__ import annotations

import json
from pathlib import Path

from kvtide.tiers.disk.file_io import FOLDER_MODE, replace_file
from kvtide.tiers.disk.lock import FolderLock, Held, holder
from kvtide.tiers.disk.segments import trim
from kvtide.tiers.disk.set_aside import drop_if_room_is_needed, set_aside
from kvtide.tiers.disk.store_folder import FORMAT_NAME, empty, in_use, rank_folders, stored_format, usable
from kvtide.tiers.record import FORMAT_VERSION

MOVING_TIMEOUT_S = 10.0
"""For other ranks that move in."""
GLANCE_TIMEOUT_S = 0.2
"""For somebody who only looks whether the folder is in use."""


def move_in(option: str, root: Path, rank: int, world: int, share_bytes: int) -> tuple[Path, FolderLock]:
    """Take a rank's folder, and make the whole store fit its budget before anything is added (F21).

    A store of another format is not read, and is in nobody's way: it is set aside, and this one begins empty.
    """
    try:
        with usable(option, str(root)), FolderLock(root, timeout_s=MOVING_TIMEOUT_S):
            found = stored_format(option, root)
            if found not in (None, FORMAT_VERSION):
                set_aside(root, found)
            if found != FORMAT_VERSION:
                replace_file(root / FORMAT_NAME, json.dumps({"format": FORMAT_VERSION}).encode())
            folder = root / f"rank-{rank}-of-{world}"
            folder.mkdir(FOLDER_MODE, exist_ok=True)
            lock = FolderLock(folder, timeout_s=GLANCE_TIMEOUT_S)
            try:
                _make_fit(root, folder, world, share_bytes)
                drop_if_room_is_needed(root, share_bytes * world)
            except BaseException:
                lock.close()
                raise
            return folder, lock
    except Held as held:
        raise in_use(option, root, held.pid) from None


def _make_fit(root: Path, own: Path, world: int, share_bytes: int) -> None:
    for temporary in own.glob("*.tmp"):
        temporary.unlink()
    for folder in rank_folders(root):
        if folder.path == own:
            trim(own, share_bytes)
        elif (pid := holder(folder.path)) is not None:
            if folder.world != world:
                raise Held(pid)
        elif folder.world == world and folder.rank < world:
            trim(folder.path, share_bytes)
        else:
            empty(folder.path)
