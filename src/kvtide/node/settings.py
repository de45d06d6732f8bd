"""What a node is told at its start, and what of that cannot work."""

from __future__ import annotations

import grp
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtide.copy.memory_left import MemoryLeft, memory_left
from kvtide.core import POLICIES
from kvtide.errors import ConfigError
from kvtide.json_option import object_of
from kvtide.node.huge_pages import reserved_bytes
from kvtide.node.shares import Share, read_shares
from kvtide.node.tiers.options import read_tiers
from kvtide.options import did_you_mean, parse_choice, parse_count, parse_size
from kvtide.tiers.config import TierConfig

OPTIONS = ("memory", "socket", "tier", "policy", "share", "group", "metrics")
"""Of the command line, and of a file."""
DEFAULT_POLICY = "prefix"
PORT_MAX = 65535
PAGE_BYTES = 4096
_EXAMPLE = '{"memory": "64GiB", "socket": "/run/kvtide/node.sock"}'


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node."""

    socket: Path
    memory_bytes: int
    policy: str = DEFAULT_POLICY
    shares: tuple[Share, ...] = ()
    group: int | None = None
    metrics_port: int | None = None
    tiers: tuple[TierConfig, ...] = ()


def options_of(config: str | None, written: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a file, or of JSON, and those of the command line, which win. Raises `ConfigError`."""
    found = {} if config is None else dict(object_of("config", config, _EXAMPLE))
    for name in found:
        if name not in OPTIONS:
            known = ", ".join(OPTIONS)
            raise ConfigError("config", name, f"options of a node; {did_you_mean(name, OPTIONS)}known are {known}")
    return {**found, **{name: value for name, value in written.items() if value not in (None, ())}}


def read_settings(options: Mapping[str, object]) -> NodeSettings:
    """Read what people wrote. Raises `ConfigError`."""
    memory, group, metrics = options.get("memory"), options.get("group"), options.get("metrics")
    memory_bytes = parse_size("memory", memory, minimum=PAGE_BYTES)
    settings = NodeSettings(
        socket=Path(_text("socket", options.get("socket"), "a path")).absolute(),
        memory_bytes=memory_bytes,
        policy=parse_choice("policy", options.get("policy", DEFAULT_POLICY), tuple(POLICIES)),
        shares=read_shares("share", options.get("share", ())),
        group=None if group is None else _group(group),
        metrics_port=None if metrics is None else _port(metrics),
        tiers=read_tiers("tier", options.get("tier", ())),
    )
    check_memory(memory, memory_bytes, memory_left(), reserved_bytes())
    return settings


def check_memory(written: object, memory_bytes: int, left: MemoryLeft, reserved: int) -> None:
    """Refuse more memory than machine and container have left: the kernel would kill the node, hours later.

    Huge pages that were set aside are not part of what is left.
    """
    if memory_bytes > max(left.nbytes, reserved):
        raise ConfigError("memory", written, left.expected)


def _text(option: str, value: object, expected: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(option, value, expected)
    return value


def _port(value: object) -> int:
    port = parse_count("metrics", value, minimum=0)
    if port > PORT_MAX:
        raise ConfigError("metrics", value, f"a port, at most {PORT_MAX}")
    return port


def _group(value: object) -> int:
    """Return the number of a group."""
    name = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(name, str):
        try:
            return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
        except KeyError:
            pass
    raise ConfigError("group", value, "a group of this machine")
