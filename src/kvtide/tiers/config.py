"""The option `tiers`: a list of places below host memory, nearest first. Checked once, at start (F22).

    "tiers": [{"type": "disk", "path": "/var/cache/kvtide", "size": "500GiB"},
              {"type": "valkey", "url": "valkeys://cache.example:6379"}]

Each type is a module of its own (`KINDS`), imported when it is used, which provides:

    OPTIONS: Mapping[str, str]        its own options, with their meaning; the common ones are `COMMON`
    URL_SCHEMES: tuple[str, ...]      what URLs of such a place begin with ("valkey://"); () for none
    parse(index, options) -> Config   a frozen dataclass derived from `TierConfig`, or a `ConfigError`; asks no server
    open(config, namespace, rank, slot_bytes_max) -> Tier
                                      `namespace` is the rank's; a `ConfigError` if this place cannot be used at all
    inspect(place, options) -> dict[str, object]
    verify(place, options, progress) -> Verified
    clear(place, options, progress) -> int
                                      for `kvtide tier`: see `kvtide.tiers.admin`
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict, cast, get_args

from kvtide.core.config import Admit
from kvtide.errors import ConfigError
from kvtide.options import did_you_mean, parse_choice, parse_count
from kvtide.tiers.base import Tier
from kvtide.tiers.encryption import SecretSource, secret_source
from kvtide.tiers.namespace import Namespace

Write = Literal["through", "evict"]

KINDS: Mapping[str, str] = {
    "disk": "kvtide.tiers.disk.kind",
    "mooncake": "kvtide.tiers.mooncake",
    "null": "kvtide.tiers.null",
    "valkey": "kvtide.tiers.valkey",
}
"""The module of each type."""

COMMON: Mapping[str, str] = {
    "type": "what kind of place it is: " + ", ".join(KINDS),
    "deadline_ms": "longest time that a request waits for this tier (default: 50)",
    "write": '"through": blocks sink as soon as they are on the host; "evict": when they leave it (default: through)',
    "admit": '"all", or "second-touch": blocks sink when they were used twice (default: all)',
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
    admit: Admit
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


class Common(TypedDict):
    """The arguments that `common` reads for `TierConfig`."""

    type: str
    index: int
    deadline_ms: int
    write: Write
    admit: Admit
    threads: int
    secret: SecretSource | None


class Kind(Protocol):
    """What a type's module provides, as far as opening goes."""

    OPTIONS: Mapping[str, str]
    URL_SCHEMES: tuple[str, ...]

    def parse(self, index: int, options: Mapping[str, object]) -> TierConfig:
        """Read the options of one tier."""

    def open(self, config: TierConfig, namespace: Namespace, rank: int, slot_bytes_max: int) -> Tier:
        """Open the tier for one rank."""


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
    """Return the module of a type, importing it if that has not been done."""
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
            tiers.append(kind.open(config, namespace.for_rank(rank), rank, slot_bytes_max))
    except BaseException:
        for tier in tiers:
            tier.close()
        raise
    return tiers


def common(index: int, options: Mapping[str, object], known: Mapping[str, str], *, threads: int) -> Common:
    """Read what every type has, and refuse what it does not know. `threads` is the type's default."""
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
    return Common(
        type=str(options["type"]),
        index=index,
        deadline_ms=deadline_ms,
        write=parse_choice(f"{prefix}.write", options.get("write", "through"), get_args(Write)),
        admit=parse_choice(f"{prefix}.admit", options.get("admit", "all"), get_args(Admit)),
        threads=count,
        secret=secret_source(prefix, options),
    )
