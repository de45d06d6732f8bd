"""The options of a disk tier."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from kvtide.errors import ConfigError
from kvtide.schema import SIZE, Read, one_of
from kvtide.tiers.config import THREADS, TierConfig
from kvtide.tiers.disk.file_io import IoMode
from kvtide.tiers.disk.layout import bytes_needed
from kvtide.tiers.disk.set_aside import room, with_aside
from kvtide.tiers.disk.shared_folder import stores_inside
from kvtide.tiers.disk.store_folder import named_folder, stored_format, usable, used_bytes
from kvtide.units import size_text

URL_SCHEMES: tuple[str, ...] = ()
ACCESS: tuple[str, ...] = ()


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


class DiskConfig(TierConfig):
    """A disk tier. Reading it looks at the folder and its disk."""

    path: Annotated[Path, Read(_folder, {"type": "string"})] = Field(
        description="a folder that exists, on a local disk; one engine may use it. In vLLM `{dp_rank}` stands for its "
        "number",
        examples=["/var/cache/kvtide"],
    )
    size: Annotated[int, SIZE] = Field(
        description="bytes on the disk that the engine takes at most, shared evenly by its ranks", examples=["500GiB"]
    )
    io: Annotated[str, one_of("auto", *(mode.value for mode in IoMode))] = Field(
        default="auto",
        description="`direct` past the page cache, `buffered` through it and dropped afterwards, `cached` through it "
        "and left there, or `auto`: direct where the file system can",
    )

    threads: Annotated[int, THREADS] = Field(default=4, description="one of them is kept free for lookups and gets")

    @model_validator(mode="after")
    def _fits(self) -> DiskConfig:
        if self.size < bytes_needed(1):
            raise ConfigError("size", self.size, f'at least {bytes_needed(1)} bytes, and room for blocks: "500GiB"')
        with usable("path", str(self.path)):
            held = [each for store in stores_inside(self.path) for each in with_aside(store)]
            left = room(self.path) + sum(map(used_bytes, held))
        if self.size > left:
            raise ConfigError(
                "size", self.size, f"at most the {left} bytes ({size_text(left)}) that the disk of {self.path} has left"
            )
        return self

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.path)

    @property
    def shown(self) -> str:
        """What the start line says."""
        return f"disk {self.path} ({size_text(self.size)})"


CONFIG = DiskConfig
