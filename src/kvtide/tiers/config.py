"""The option `tiers`: a list of places below host memory, nearest first. Checked once, at start (F22).

    "tiers": [{"type": "disk", "path": "/var/cache/kvtide", "size": "500GiB"},
              {"type": "valkey", "url": "valkeys://cache.example:6379"}]

Each type is a module of its own, imported when it is used, with what `Kind` lists. Where it is a package, `options` has
what people write, `opening` makes a tier of it, `backend` keeps the bytes, and `admin` is for operators.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

from kvtide.core.config import Admission
from kvtide.errors import ConfigError
from kvtide.options import did_you_mean, parse_choice, parse_count
from kvtide.tiers.admin import Progress, Verified
from kvtide.tiers.base import Tier
from kvtide.tiers.encryption import SecretSource, secret_source
from kvtide.tiers.namespace import Namespace

Write = Literal["through", "evict"]

KINDS: Mapping[str, str] = {
    "disk": "kvtide.tiers.disk",
    "mooncake": "kvtide.tiers.mooncake",
    "null": "kvtide.tiers.null",
    "valkey": "kvtide.tiers.valkey",
}
"""The module of each type."""

COMMON: Mapping[str, str] = {
    "type": "what kind of place it is: " + ", ".join(KINDS),
    "deadline_ms": "longest time that a request waits for this tier (default: 50)",
    "write": '"through": blocks sink as soon as they are on the host; "evict": when they leave it (default: through)',
    "admit": '"all", or "second-use": blocks sink when they were used twice (default: all)',
    "threads": "calls that run at a time",
    "encryption_key_file": "file with a key of 64 hexadecimal digits: records are encrypted with AES-GCM",
    "encryption_key_env": "environment variable with such a key, instead of a file",
}
"""Options that every type has."""

THREADS_MAX = 64
DEADLINE_MS_MAX = 3_600_000
"""An hour. Sockets and locks raise errors of their own when they are to wait for much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """What every tier's configuration has. Types derive their own from it."""

    type: str
    index: int
    """Position in the list."""
    deadline_ms: int
    write: Write
    admit: Admission
    threads: int
    secret: SecretSource | None

    @property
    def option(self) -> str:
        """What error messages call it: `tiers[0]`."""
        return f"tiers[{self.index}]"

    @property
    def place(self) -> str:
        """Where it keeps bytes; two tiers must not have the same."""
        return f"{self.type}:"

    @property
    def shown(self) -> str:
        """What the start line says: type, place and size."""
        return f"{self.type} {self.place}"


class Kind(Protocol):
    """What a type's module provides. The last three are for operators: see `kvtide.tiers.admin`."""

    OPTIONS: Mapping[str, str]
    """Its own options, with their meaning."""
    URL_SCHEMES: tuple[str, ...]
    """What URLs of such a place begin with ("valkey://"); () for none."""
    ACCESS: tuple[str, ...]
    """Options that operators need as well."""

    def parse(self, index: int, options: Mapping[str, object]) -> TierConfig:
        """Read the options of one tier. Asks no server."""

    def open_tier(self, config: TierConfig, namespace: Namespace, slot_bytes_max: int) -> Tier:
        """Open the tier for the namespace's rank. A `ConfigError` if this place cannot be used at all."""

    def inspect(self, place: str, options: Mapping[str, object]) -> dict[str, object]:
        """Say what is there."""

    def verify(self, place: str, options: Mapping[str, object], progress: Progress) -> Verified:
        """Read and check every record."""

    def clear(self, place: str, options: Mapping[str, object], progress: Progress) -> int:
        """Remove everything."""


def tier_names(types: Sequence[str]) -> tuple[str, ...]:
    """Return what metrics call each tier: its type, and its position in the list if several are of that type.

    >>> tier_names(["disk", "valkey", "valkey"])
    ('disk', 'valkey-1', 'valkey-2')
    """
    return tuple(name if types.count(name) == 1 else f"{name}-{index}" for index, name in enumerate(types))


def parse_tiers(option: object) -> tuple[TierConfig, ...]:
    """Read the option `tiers`. Looks at paths, and at no server."""
    if isinstance(option, str | bytes | Mapping) or not isinstance(option, Sequence):
        raise ConfigError(
            "tiers", option, 'a list such as [{"type": "disk", "path": "/var/cache/kvtide", "size": "1GiB"}]'
        )
    configs: list[TierConfig] = []
    places: dict[str, TierConfig] = {}
    for index, options in enumerate(option):
        config = _parse_one(index, options)
        if config.place in places:
            other = places[config.place].option
            raise ConfigError(config.option, config.place, f"a place that is not already that of {other}")
        places[config.place] = config
        configs.append(config)
    return tuple(configs)


def _parse_one(index: int, options: object) -> TierConfig:
    name = f"tiers[{index}]"
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ConfigError(
            name, options, 'an object such as {"type": "disk", "path": "/var/cache/kvtide", "size": "1GiB"}'
        )
    if "type" not in options:
        raise ConfigError(f"{name}.type", None, f"one of {', '.join(KINDS)}")
    kind = kind_of(f"{name}.type", options["type"])
    return kind.parse(index, options)


def kind_of(option: str, name: object) -> Kind:
    """Return the module of a type, importing it if that has not been done: some need packages that are optional."""
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(option, name, f"a known type; {did_you_mean(str(name), KINDS)}known are {', '.join(KINDS)}")
    try:
        return cast(Kind, importlib.import_module(KINDS[name]))
    except ImportError as error:
        raise ConfigError(option, name, f"its package, pip install 'kvtide[{name}]' ({error})") from error


def open_tiers(configs: Sequence[TierConfig], namespace: Namespace, *, rank: int, slot_bytes_max: int) -> list[Tier]:
    """Open all tiers of one rank, or none. `slot_bytes_max`: bytes of the largest block that will be put."""
    tiers: list[Tier] = []
    try:
        for config in configs:
            kind = kind_of(f"{config.option}.type", config.type)
            tiers.append(kind.open_tier(config, namespace.for_rank(rank), slot_bytes_max))
    except BaseException:
        for tier in tiers:
            tier.close()
        raise
    return tiers


def common(index: int, options: Mapping[str, object], known: Mapping[str, str], *, threads: int) -> dict[str, Any]:
    """Read what `TierConfig` has, and refuse what the type does not know. `threads` is its default."""
    prefix = f"tiers[{index}]"
    every = {**COMMON, **known}
    for name, value in options.items():
        if name == "checksum":
            raise ConfigError(f"{prefix}.{name}", value, "to be left out: every record has a checksum, always")
        if name not in every:
            raise ConfigError(
                f"{prefix}.{name}", value, f"a known option; {did_you_mean(name, every)}known are {', '.join(every)}"
            )
    count = parse_count(f"{prefix}.threads", options.get("threads", threads))
    if count > THREADS_MAX:
        raise ConfigError(f"{prefix}.threads", count, f"at most {THREADS_MAX}")
    deadline_ms = parse_count(f"{prefix}.deadline_ms", options.get("deadline_ms", 50))
    if deadline_ms > DEADLINE_MS_MAX:
        raise ConfigError(f"{prefix}.deadline_ms", deadline_ms, f"at most {DEADLINE_MS_MAX}, which is an hour")
    return {
        "type": options["type"],
        "index": index,
        "deadline_ms": deadline_ms,
        "write": parse_choice(f"{prefix}.write", options.get("write", "through"), get_args(Write)),
        "admit": _admit(f"{prefix}.admit", options.get("admit", "all")),
        "threads": count,
        "secret": secret_source(prefix, options),
    }


def _admit(option: str, value: object) -> Admission:
    older_name = value == "second-touch"
    return "second-use" if older_name else parse_choice(option, value, get_args(Admission))


def text_option(prefix: str, name: str, options: Mapping[str, object], known: Mapping[str, str]) -> str | None:
    """Read a text that may be left out. `prefix` is what stands before its name in errors."""
    if name not in options:
        return None
    value = options[name]
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{prefix}{name}", value, known[name])
    return value
