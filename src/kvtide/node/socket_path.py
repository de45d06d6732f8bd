"""Paths of sockets, as people write them: what can be none is refused before anybody connects."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kvtide.errors import ConfigError

PATH_BYTES_MAX = 107
"""The kernel's bound on names of sockets."""


def check_socket_path(option: str, path: Path) -> None:
    """Refuse a path at which no socket can be made."""
    _check_length(option, path)
    if not path.parent.is_dir():
        raise ConfigError(
            option,
            str(path),
            f"a path in a folder that exists: `mkdir -p {path.parent}`, or "
            f"`sudo install -d -o $USER {path.parent}` where only root may",
        )


def read_node_path(option: str, value: object) -> Path:
    """Return the path of a node's socket. The node need not be there yet, but nothing else may be in its place.

    Nor its folder: in /run it may be made when the node is first started after a boot, which engines do not wait for.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(option, value, 'the path of the socket of a node, for example "/run/kvtide/node.sock"')
    path = Path(value)
    _check_length(option, path)
    try:
        mode = path.stat().st_mode
    except NotADirectoryError:
        raise ConfigError(option, value, "the socket of a node; what it is said to be in is no folder") from None
    except OSError:  # it is not there, or not to be seen: whoever connects says which
        return path
    if not stat.S_ISSOCK(mode):
        raise ConfigError(option, value, "the socket of a node; what is there is no socket")
    return path


def _check_length(option: str, path: Path) -> None:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise ConfigError(option, str(path), f"a path of at most {PATH_BYTES_MAX} bytes")
