"""A folder with several stores, one for each namespace of a node, which together keep to one budget.

PATH/lock                                  held as long as the node runs
PATH/namespace-0123456789abcdef/…          a store (`store_folder`)

Stores of namespaces that nobody uses stay, until one that is used needs their room.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.tiers.disk.file_io import FOLDER_MODE
from kvtide.tiers.disk.lock import FolderLock, Held, holder
from kvtide.tiers.disk.moving_in import GLANCE_TIMEOUT_S
from kvtide.tiers.disk.set_aside import with_aside
from kvtide.tiers.disk.store_folder import FORMAT_NAME, in_use, rank_folders, remove_store, usable, used_bytes
from kvtide.units import size_text

_NAME = re.compile(r"namespace-[0-9a-f]{16}")
_log = logging.getLogger(__name__)


def stores_inside(root: Path) -> Iterator[Path]:
    """Find the stores of all namespaces, the one that was used least recently first."""
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    yield from sorted(found, key=lambda path: path.stat().st_mtime)


class SharedFolder:
    """Locked as long as it is open. `enter` and `leave` may be called by several threads.

    Raises:
        ConfigError: it cannot be had, by the name of the option.

    """

    def __init__(self, option: str, root: Path, size_bytes: int) -> None:
        self._option = option
        self._root = root
        self._size_bytes = size_bytes
        self._open_bytes: dict[str, int] = {}
        """What stores that are in use may take."""
        self._changing = threading.Lock()
        with usable(option, str(root)):
            try:
                self._lock = FolderLock(root, timeout_s=GLANCE_TIMEOUT_S)
            except Held as held:
                raise in_use(option, root, held.pid) from None
        try:
            self._refuse_another_kind()
        except BaseException:
            self._lock.close()
            raise

    def _refuse_another_kind(self) -> None:
        """An engine's own store has no place here: its bytes would not be counted."""
        with usable(self._option, str(self._root)):
            for rank in rank_folders(self._root):
                if (pid := holder(rank.path)) is not None:
                    raise in_use(self._option, self._root, pid)
            if (self._root / FORMAT_NAME).exists():
                fix = f"choose another, or empty this one with `kvtide tier clear {self._root}`"
                raise ConfigError(self._option, str(self._root), f"a folder without blocks of an engine: {fix}")

    def enter(self, name: str, share: float) -> tuple[Path, int]:
        """Return the folder of a namespace, and the bytes that it may take: its share of all."""
        with self._changing, usable(self._option, str(self._root)):
            path = self._root / f"namespace-{name}"
            self._open_bytes[path.name] = nbytes = int(self._size_bytes * share)
            self._make_room()
            path.mkdir(FOLDER_MODE, exist_ok=True)
            os.utime(path)
            return path, nbytes

    def leave(self, name: str) -> None:
        """A namespace is not used any more."""
        with self._changing, usable(self._option, str(self._root)):
            path = self._root / f"namespace-{name}"
            if self._open_bytes.pop(path.name, None) is not None:
                os.utime(path)

    def close(self) -> None:
        """Let others in. May be called again."""
        self._lock.close()

    def _make_room(self) -> None:
        """Remove stores that nobody uses, as long as all together might take more than the budget (F21)."""
        unused = [path for path in stores_inside(self._root) if path.name not in self._open_bytes]
        taken = {path: sum(map(used_bytes, with_aside(path))) for path in unused}
        for path in unused:
            if sum(taken.values()) + sum(self._open_bytes.values()) <= self._size_bytes:
                return
            shown = size_text(taken[path])
            try:
                with FolderLock(path):
                    _log.warning("kvtide: removes %s (%s), which nobody uses: its room is needed", path, shown)
                    for store in with_aside(path):
                        remove_store(store)
                del taken[path]
            except Held as held:
                _log.warning("kvtide: keeps %s (%s), though its room is needed: %s has locked it", path, shown, held)
