"""What a node is told at its start, and what of that cannot work."""

from __future__ import annotations

import grp
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtide.copy.memory_left import MemoryLeft, memory_left
from kvtide.errors import ConfigError
from kvtide.node.huge_pages import reserved_bytes
from kvtide.node.tiers.options import read_tiers
from kvtide.options import parse_size
from kvtide.tiers.config import TierConfig


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node."""

    socket: Path
    memory_bytes: int
    group: int | None = None
    metrics_port: int | None = None
    tiers: tuple[TierConfig, ...] = ()


def read_settings(
    *, memory: str, socket: str, group: str | None = None, metrics: int | None = None, tier: Sequence[str] = ()
) -> NodeSettings:
    """Read what people wrote. Raises `ConfigError`."""
    memory_bytes = parse_size("memory", memory)
    check_memory(memory, memory_bytes, memory_left(), reserved_bytes())
    return NodeSettings(
        socket=Path(socket).absolute(),
        memory_bytes=memory_bytes,
        group=None if group is None else _group(group),
        metrics_port=metrics,
        tiers=read_tiers("tier", tier),
    )


def check_memory(written: object, memory_bytes: int, left: MemoryLeft, reserved: int) -> None:
    """Refuse more memory than machine and container have left: the kernel would kill the node, hours later.

    Huge pages that were set aside are not part of what is left.
    """
    if memory_bytes > max(left.nbytes, reserved):
        raise ConfigError("memory", written, left.expected)


def _group(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError("group", name, "a group of this machine") from None
