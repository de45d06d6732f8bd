"""What the tests of tiers share."""

from __future__ import annotations

from pathlib import Path

from kvtide.tiers import Namespace
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.disk.backend import DiskBackend
from kvtide.tiers.disk.opening import open_backend
from kvtide.tiers.disk.options import DiskConfig

NAMESPACE = Namespace(
    model="tiny",
    weights="1",
    dtype="float32",
    layout="layers, keys, values",
    groups="full 16",
    block_bytes=8192,
    attention="numpy",
    hashing="sha256_cbor",
)


def disk_config(path: Path, size: int = 4 << 20, **options: object) -> DiskConfig:
    (config,) = parse_tiers([{"type": "disk", "path": str(path), "size": size, **options}])
    assert isinstance(config, DiskConfig)
    return config


def disk_store(
    path: Path, size: int = 4 << 20, *, slot_bytes: int = 8192, namespace: Namespace = NAMESPACE, **options: str
) -> DiskBackend:
    return open_backend(disk_config(path, size, **options), namespace, slot_bytes)


def disk_bytes(path: Path) -> int:
    """Return what a folder takes on the disk, all of it, without the folder itself."""
    return sum(found.lstat().st_blocks * 512 for found in path.rglob("*"))
