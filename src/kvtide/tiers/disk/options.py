"""The options of a disk tier."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.options import parse_choice, parse_size
from kvtide.tiers.config import TierConfig, common
from kvtide.tiers.disk.file_io import IoMode
from kvtide.tiers.disk.set_aside import room
from kvtide.tiers.disk.store_folder import named_folder, stored_format, usable
from kvtide.units import size_text

OPTIONS: Mapping[str, str] = {
    "path": "folder on a local disk, which has to exist; only one engine may use it",
    "size": 'bytes on the disk that the engine takes at most ("500GiB"), shared evenly by its ranks',
    "io": '"direct" past the page cache, "buffered" through it and dropped afterwards, "cached" through it and left '
    'there, or "auto": direct where the file system can (default: auto)',
}
URL_SCHEMES: tuple[str, ...] = ()
ACCESS: tuple[str, ...] = ()
THREADS = 4


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

    @property
    def shown(self) -> str:
        """What the start line says."""
        return f"disk {self.path} ({size_text(self.size)})"


def parse(index: int, options: Mapping[str, object]) -> DiskConfig:
    """Read the options of a disk tier, and look at the folder and its disk."""
    prefix = f"tiers[{index}]"
    shared = common(index, options, OPTIONS, threads=THREADS)
    path = _folder(f"{prefix}.path", options.get("path"))
    size = parse_size(f"{prefix}.size", options.get("size"))
    with usable(f"{prefix}.path", str(path)):
        left = room(path)
    if size > left:
        raise ConfigError(
            f"{prefix}.size", options["size"], f"at most the {left} bytes that the disk of {path} has left"
        )
    io = parse_choice(f"{prefix}.io", options.get("io", "auto"), ("auto", *(mode.value for mode in IoMode)))
    return DiskConfig(**shared, path=path, size=size, io=io)


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
    stored_format(option, path)  # raises where this user may not read what is there
    return path
