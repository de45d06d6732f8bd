"""The folder that people name: one folder in it for each rank, a format, and a lock for whoever changes that.

PATH/kvtide-store.json         the format
PATH/lock                      held for a moment, while a rank moves in or out
PATH/rank-0-of-2/lock          held as long as the rank runs
PATH/rank-0-of-2/segment-…     records
PATH/rank-0-of-2/namespace-…   what they depend on
PATH/format-2/…                a store of another format (`set_aside`)
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from kvtide.errors import ConfigError
from kvtide.tiers.admin import OtherFormat
from kvtide.tiers.disk.lock import LOCK_NAME
from kvtide.tiers.disk.segments import stat_of
from kvtide.tiers.record import FORMAT_VERSION

FORMAT_NAME = "kvtide-store.json"
_RANK = re.compile(r"rank-(\d+)-of-(\d+)")
_OURS = re.compile(r"segment-\d{8}|namespace-[0-9a-f]{32}\.json|lock|.*\.tmp")


class RankFolder(NamedTuple):
    """One rank's folder."""

    path: Path
    rank: int
    world: int


@contextmanager
def usable(option: str, place: str) -> Iterator[None]:
    """Turn errors of the system into what the person who named the folder is told."""
    try:
        yield
    except OSError as error:
        raise _unusable(option, place, error) from error


def _unusable(option: str, place: str, error: OSError) -> ConfigError:
    which = "" if error.filename is None or str(error.filename) == place else f"{error.filename}: "
    reason = f"{which}{error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM):
        fix = f"run this as the user who owns {place}, or give this user the rights to all of it"
        return ConfigError(option, place, f"a folder that this user may read and write ({reason}): {fix}")
    return ConfigError(option, place, f"a folder that can be used ({reason}): fix that, or choose another")


def named_folder(option: str, value: str) -> Path:
    """Return the folder that somebody named, whether or not there is one."""
    with usable(option, value):
        try:
            path = Path(value).expanduser()
        except RuntimeError:
            user = Path(value).parts[0]
            raise ConfigError(option, value, f"a path from the root: {user} is no user's home") from None
        with suppress(FileNotFoundError, NotADirectoryError, ValueError):
            path.stat()  # raises what keeps anybody from telling whether it is a folder
        return path


def rank_folders(root: Path) -> Iterator[RankFolder]:
    """Find the folders of all ranks, in order."""
    for path in sorted(root.iterdir()):
        if (match := _RANK.fullmatch(path.name)) is not None and path.is_dir():
            yield RankFolder(path, int(match[1]), int(match[2]))


def stored_format(option: str, root: Path) -> int | None:
    """Return the format of the store in a folder. None: there is no store. 0: its file says none."""
    with usable(option, str(root)):
        try:
            content = (root / FORMAT_NAME).read_bytes()
        except FileNotFoundError:
            return None
    try:
        found = json.loads(content)["format"]
    except (ValueError, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) else 0


def check_format(option: str, root: Path) -> None:
    """Refuse a store of another format version."""
    found = stored_format(option, root)
    if found not in (None, FORMAT_VERSION):
        raise OtherFormat(
            option,
            str(root),
            f"a store of format {FORMAT_VERSION}, and this one has format {found or 'unknown'}: choose another folder, "
            f"or empty this one with `kvtide tier clear {root}`",
        )


def in_use(option: str, root: Path, pid: int | None) -> ConfigError:
    """Return what a second server is told."""
    who = f"process {pid}" if pid else "another process"
    return ConfigError(
        option, str(root), f"a folder that no other server uses, and {who} does: stop it, or choose another"
    )


def empty(folder: Path) -> None:
    """Remove a rank's folder with all that is ours."""
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def forget(root: Path) -> None:
    """Remove what says that there is a store. The folders of its ranks were emptied."""
    for name in (FORMAT_NAME, LOCK_NAME):
        (root / name).unlink(missing_ok=True)


def remove_store(root: Path) -> None:
    """Remove a whole store, which nobody uses, and its folder if nothing else is in it."""
    for folder in rank_folders(root):
        empty(folder.path)
    forget(root)
    if not any(root.iterdir()):
        root.rmdir()


def used_bytes(root: Path) -> int:
    """Return what a store takes on the disk."""
    total = 0
    for folder in [root, *(rank.path for rank in rank_folders(root))]:
        with os.scandir(folder) as entries:
            ours = [entry for entry in entries if _OURS.fullmatch(entry.name) or entry.name in (FORMAT_NAME, LOCK_NAME)]
            total += sum(stat.st_blocks * 512 for stat in map(stat_of, ours) if stat is not None)
    return total
