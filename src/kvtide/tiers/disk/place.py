"""What an operator names: the folder of a store, or that of a node, which has a store for each model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.redaction import redacted
from kvtide.tiers.disk.lock import FolderLock, Held
from kvtide.tiers.disk.set_aside import with_aside
from kvtide.tiers.disk.shared_folder import stores_inside
from kvtide.tiers.disk.store_folder import FORMAT_NAME, in_use, named_folder, rank_folders, stored_format, usable


@dataclass(frozen=True, slots=True)
class Place:
    """A folder: a store, or that of a node, which has several."""

    root: Path
    is_of_node: bool

    @property
    def stores(self) -> list[Path]:
        """The stores in it."""
        return list(stores_inside(self.root)) if self.is_of_node else [self.root]

    @property
    def all_stores(self) -> list[Path]:
        """Return those of other formats, too, that were set aside."""
        return [each for store in self.stores for each in with_aside(store)]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep servers and a node out of it."""
        with ExitStack() as locks:
            try:
                locks.enter_context(FolderLock(self.root))  # nobody moves in any more: what is found now is all
                for store in self.stores:
                    if store != self.root:
                        locks.enter_context(FolderLock(store))
                    for folder in rank_folders(store):
                        locks.enter_context(FolderLock(folder.path))
            except Held as held:
                raise in_use("PLACE", self.root, held.pid) from None
            yield


def named_place(place: str) -> Place:
    """Find what somebody named. Raises `ConfigError` if there is no store."""
    root = named_folder("PLACE", place)
    if not root.is_dir():
        # It may be a URL with a typing error.
        raise ConfigError("PLACE", redacted(place), "a folder that exists, or a URL, such as valkey://HOST:6379")
    root = root.resolve()
    if stored_format("PLACE", root) is not None:
        return Place(root, is_of_node=False)
    with usable("PLACE", place):
        if any(stores_inside(root)):
            return Place(root, is_of_node=True)
    raise ConfigError("PLACE", place, f"the folder of a disk tier, and there is no {FORMAT_NAME} in it")
