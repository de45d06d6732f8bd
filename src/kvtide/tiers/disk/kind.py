"""The type `disk` of the option `tiers`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.options import parse_choice, parse_size
from kvtide.tiers.base import Tier
from kvtide.tiers.config import TierConfig, common
from kvtide.tiers.disk.admin import clear, inspect, verify
from kvtide.tiers.disk.files import IoMode, probe
from kvtide.tiers.disk.folder import SegmentFolder
from kvtide.tiers.disk.layout import bytes_needed, segment_layout
from kvtide.tiers.disk.manifests import note_namespace
from kvtide.tiers.disk.place import check_format, move_in, named_folder, usable, used_bytes
from kvtide.tiers.disk.store import DiskStore
from kvtide.tiers.namespace import Namespace
from kvtide.tiers.queued import QueuedTier
from kvtide.tiers.record import Sealer

__all__ = ["OPTIONS", "URL_SCHEMES", "DiskConfig", "clear", "inspect", "open", "open_store", "parse", "verify"]

OPTIONS: Mapping[str, str] = {
    "path": "folder on a local disk, which has to exist; only one engine may use it",
    "size": 'bytes on the disk that the engine takes at most ("500GiB"), shared evenly by its ranks',
    "io": '"direct" past the page cache, "buffered" through it and dropped afterwards, "cached" through it and left '
    'there, or "auto": direct where the file system can (default: auto)',
}
URL_SCHEMES: tuple[str, ...] = ()
THREADS = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskConfig(TierConfig):
    """A disk tier."""

    path: Path
    size: int
    """Of the whole engine."""
    io: str

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.path)


def parse(index: int, options: Mapping[str, object]) -> DiskConfig:
    """Read the options of a disk tier, and look at the folder and its disk."""
    prefix = f"tiers[{index}]"
    shared = common(index, options, OPTIONS, threads=THREADS)
    path = _folder(f"{prefix}.path", options.get("path"))
    size = parse_size(f"{prefix}.size", options.get("size"))
    with usable(f"{prefix}.path", str(path)):
        room = _room(path)
    if size > room:
        raise ConfigError(
            f"{prefix}.size", options["size"], f"at most the {room} bytes that the disk of {path} has left"
        )
    io = parse_choice(f"{prefix}.io", options.get("io", "auto"), ("auto", *(mode.value for mode in IoMode)))
    return DiskConfig(**shared, path=path, size=size, io=io)


def open(config: TierConfig, namespace: Namespace, rank: int, slot_bytes_max: int) -> Tier:  # noqa: A001 - see tiers.config
    """Open the tier for one rank."""
    assert isinstance(config, DiskConfig)
    store = open_store(config, namespace, rank, slot_bytes_max)
    return QueuedTier(store, threads=config.threads, name=f"disk-{config.index}")


def open_store(config: DiskConfig, namespace: Namespace, rank: int, slot_bytes_max: int) -> DiskStore:
    """Open one rank's store: its calls block."""
    share_bytes = config.size // namespace.world
    layout = segment_layout(share_bytes, slot_bytes_max)
    if layout is None:
        needed = bytes_needed(slot_bytes_max) * namespace.world
        raise ConfigError(f"{config.option}.size", config.size, f"at least {needed} bytes, for one block on each rank")
    cipher = config.secret.cipher() if config.secret is not None else None
    begin_s = time.monotonic()
    folder, lock = move_in(f"{config.option}.path", config.path, rank, namespace.world, share_bytes)
    try:
        mode = probe(folder) if config.io == "auto" else IoMode(config.io)
        segments = SegmentFolder(folder, namespace.digest, layout, share_bytes, mode)
        differences = note_namespace(folder, namespace, segments.namespaces)
        sealer = Sealer(namespace.digest, cipher, where=str(folder))
        store = DiskStore(segments, sealer, lock, budget_bytes=share_bytes, mode=mode)
    except OSError as error:
        lock.close()
        raise ConfigError(f"{config.option}.path", str(config.path), f"a folder that can be used ({error})") from error
    except BaseException:
        lock.close()
        raise
    _tell(folder, store, mode, differences, time.monotonic() - begin_s)
    return store


def _tell(folder: Path, store: DiskStore, mode: IoMode, differences: list[str], seconds: float) -> None:
    if differences:
        _log.warning(
            "kvtide: the blocks in %s were made under another namespace and are not read: %s",
            folder,
            "; ".join(differences),
        )
    _log.info(
        "kvtide: disk tier in %s: %d blocks found in %.2f s, %s I/O, at most %d bytes",
        folder,
        store.records,
        seconds,
        mode.value,
        store.bytes_budget(),
    )


def _folder(option: str, value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise ConfigError(option, value, "the path of a folder")
    path = named_folder(option, value)
    if not path.is_dir():
        what = "a folder, and this is a file" if path.exists() else f"a folder that exists: mkdir -p {path}"
        raise ConfigError(option, value, what)
    path = path.resolve()
    with usable(option, value):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    if read_only or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(option, value, "a folder that this user can write")
    check_format(option, path)
    return path


def _room(path: Path) -> int:
    """Return what the disk has left, and what the store has of it already."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize + used_bytes(path)
