"""What an operator names: the folder of a store, or that of a node, which has a store for each model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.redaction import redacted
from kvtide.tiers.disk.lock import LOCK_NAME, FolderLock, Held
from kvtide.tiers.disk.shared_folder import stores_inside
from kvtide.tiers.disk.store_folder import (
    FORMAT_NAME,
    RankFolder,
    in_use,
    named_folder,
    rank_folders,
    stored_format,
    usable,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, and the stores in it: itself, or those of a node."""

    root: Path
    stores: tuple[Path, ...]

    @property
    def is_of_node(self) -> bool:
        """Whether the folder is no store itself."""
        return self.root not in self.stores

    @contextmanager
    def locked(self) -> Iterator[list[RankFolder]]:
        """Keep servers and a node out of it; yield the folders of all ranks of all stores."""
        with ExitStack() as locks:
            folders = [folder for store in self.stores for folder in rank_folders(store)]
            try:
                for path in dict.fromkeys([self.root, *self.stores, *(folder.path for folder in folders)]):
                    locks.enter_context(FolderLock(path))
            except Held as held:
                raise in_use("PLACE", self.root, held.pid) from None
            yield folders

    def forget(self) -> None:
        """Remove what says that there are stores. All is locked, and their ranks' folders were emptied.

        The lock of a node stays, for nodes hold it as long as they run: one may have opened it, and wait.
        """
        for path in self.stores:
            for name in (FORMAT_NAME, LOCK_NAME):
                (path / name).unlink(missing_ok=True)
            if path != self.root and not any(path.iterdir()):
                path.rmdir()


def named_place(place: str) -> Place:
    """Find what somebody named. Raises `ConfigError` if there is no store."""
    root = named_folder("PLACE", place)
    if not root.is_dir():
        # It may be a URL with a typing error.
        raise ConfigError("PLACE", redacted(place), "a folder that exists, or a URL, such as valkey://HOST:6379")
    root = root.resolve()
    if stored_format("PLACE", root) is not None:
        return Place(root, (root,))
    with usable("PLACE", place):
        stores = tuple(stores_inside(root))
    if not stores:
        raise ConfigError("PLACE", place, f"the folder of a disk tier, and there is no {FORMAT_NAME} in it")
    return Place(root, stores)
