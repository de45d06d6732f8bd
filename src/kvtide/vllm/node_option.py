"""The option `node`: host memory that a process of its own keeps for all engines of this machine (`kvtide node`)."""

from __future__ import annotations

from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.node.socket_path import read_node_path
from kvtide.schema import Read

NODE = Read(read_node_path, {"type": "string", "minLength": 1})


def refuse_ranks_elsewhere(path: Path, elsewhere: str | None) -> None:
    """Refuse a node for an engine whose ranks are not all on this machine, for `elsewhere` says why."""
    if elsewhere is not None:
        raise ConfigError("node", str(path), f"an engine whose ranks are all on the machine of its node: {elsewhere}")
