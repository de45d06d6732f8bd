"""Writing files: all of it or nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvtide.errors import ConfigError

Write = Callable[[Path], object]


def check_writable(option: str, path: str, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a path that cannot be written, before hours are spent on what would be written there."""
    target = Path(path)
    if suffixes and target.suffix.lower() not in suffixes:
        raise ConfigError(option, path, "a name that ends in " + " or ".join(suffixes))
    if target.is_dir():
        raise ConfigError(option, path, "a file, not a directory")
    if target.exists() and not target.is_file():
        return  # a device or a pipe: who opens it hears what is wrong with it
    folder = target.parent
    if not folder.is_dir():
        raise ConfigError(option, path, f"a file in a folder that exists: mkdir -p {folder}")
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise ConfigError(option, path, "a file that may be written")


def write_whole(path: str, write: Write) -> None:
    """Let `write` write to another file in the same directory, and then give it its name.

    A device or a pipe (/dev/stdout) is written to as it is: it must not be replaced by a file.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        write(target)
        return
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from None
    finally:
        temporary.unlink(missing_ok=True)
