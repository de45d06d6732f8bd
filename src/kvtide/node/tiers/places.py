"""Where a node's tiers keep their bytes: places of the node's own, of which each namespace has its part."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.tiers.config import TierConfig
from kvtide.tiers.disk.options import DiskConfig
from kvtide.tiers.disk.shared_folder import SharedFolder


class TierPlaces:
    """Folders are the node's alone as long as it runs. Shared stores tell namespaces apart by themselves.

    Raises:
        ConfigError: a folder cannot be had.

    """

    def __init__(self, configs: Sequence[TierConfig]) -> None:
        self._configs = tuple(configs)
        self._folders: dict[str, SharedFolder] = {}
        try:
            for config in self._configs:
                if isinstance(config, DiskConfig):
                    folder = SharedFolder(f"{config.option}.path", config.path, config.size)
                    self._folders[config.option] = folder
        except BaseException:
            self.close()
            raise

    def enter(self, name: str, share: float) -> tuple[TierConfig, ...]:
        """Return the tiers of one namespace, which has `share` of the node's memory, and so of a folder's bytes."""
        return tuple(self._own(config, name, share) for config in self._configs)

    def leave(self, name: str) -> None:
        """A namespace is not used any more, and its tiers are closed."""
        for folder in self._folders.values():
            folder.leave(name)

    def close(self) -> None:
        """Let others have the folders. May be called again."""
        for folder in self._folders.values():
            folder.close()

    def _own(self, config: TierConfig, name: str, share: float) -> TierConfig:
        folder = self._folders.get(config.option)
        if folder is None:
            return config
        path, nbytes = folder.enter(name, share)
        return config.model_copy(update={"path": path, "size": nbytes})
