"""The option `tiers`: a list of places below host memory, nearest first. Checked once, at start (F22).

    "tiers": [{"type": "disk", "path": "/var/cache/kvtide", "size": "500GiB"},
              {"type": "valkey", "url": "valkeys://cache.example:6379"}]

Each type is a module of its own, imported when it is used, with what `Kind` lists. Where it is a package, `options` has
what people write, `opening` makes a tier of it, `backend` keeps the bytes, and `admin` is for operators.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast, get_args

from pydantic import Field, PrivateAttr, model_validator

from kvtide.core.config import Admission
from kvtide.errors import ConfigError
from kvtide.options import parse_choice, unknown
from kvtide.packages import PACKAGES, install
from kvtide.schema import OptionsModel, Read, one_of, read_model, text, whole
from kvtide.tiers.admin import Progress, Verified
from kvtide.tiers.base import Tier
from kvtide.tiers.encryption import Cipher, SecretSource
from kvtide.tiers.namespace import Namespace

Write = Literal["through", "evict"]
TIERS = "tiers"
"""What the option is called, if nothing else is said."""

KINDS: Mapping[str, str] = {
    "disk": "kvtide.tiers.disk",
    "mooncake": "kvtide.tiers.mooncake",
    "null": "kvtide.tiers.null",
    "valkey": "kvtide.tiers.valkey",
}
"""The module of each type."""

THREADS_MAX = 64
DEADLINE_MS_MAX = 3_600_000
"""An hour. Sockets and locks raise errors of their own when they are to wait for much longer."""
THREADS = whole(1, THREADS_MAX)


def _admission(option: str, value: object) -> Admission:
    older_name = value == "second-touch"
    return "second-use" if older_name else parse_choice(option, value, get_args(Admission))


class TierConfig(OptionsModel):
    """What people write about a tier of any type. Types derive their own from it."""

    type: Annotated[str, one_of(*KINDS)] = Field(description="`disk`, `valkey`, `mooncake`; `null` keeps nothing")
    deadline_ms: Annotated[int, whole(1, DEADLINE_MS_MAX, ", which is an hour")] = Field(
        default=50, description="longest time that a request waits for this tier; at most an hour"
    )
    write: Annotated[Write, one_of(*get_args(Write))] = Field(
        default="through",
        description="`through`: blocks sink as soon as they are on the host; `evict`: when they leave it",
    )
    admit: Annotated[Admission, Read(_admission, {"enum": [*get_args(Admission), "second-touch"]})] = Field(
        default="all",
        description="`all`, or `second-use`: blocks sink when they were used twice (`second-touch` is its older name)",
    )
    threads: Annotated[int, THREADS] = Field(
        default=4, description="calls that run at a time", json_schema_extra={"default_text": "by type"}
    )
    encryption_key_file: Annotated[str | None, text("the path of a file")] = Field(
        default=None,
        description="file with a key of 64 hexadecimal digits, `chmod 600`: records are encrypted with AES-GCM",
    )
    encryption_key_env: Annotated[str | None, text("the name of an environment variable")] = Field(
        default=None, description="environment variable with such a key, instead of a file"
    )
    _list: str = PrivateAttr(default=TIERS)
    _index: int = PrivateAttr(default=0)

    def model_post_init(self, context: Any) -> None:
        """Learn its position in the list, and what that is called."""
        told = context or {}
        self._list, self._index = told.get("list", TIERS), told.get("index", 0)

    @model_validator(mode="after")
    def _check_secret(self) -> TierConfig:
        if self.encryption_key_file is not None and self.encryption_key_env is not None:
            names = "either encryption_key_file or encryption_key_env"
            raise ConfigError("encryption_key_env", self.encryption_key_env, names)
        if self.secret is not None:
            self.secret.read()
        return self

    @property
    def secret(self) -> SecretSource | None:
        """Where the key is with which records are encrypted."""
        if self.encryption_key_file is not None:
            return SecretSource(f"{self.option}.encryption_key_file", file=Path(self.encryption_key_file))
        if self.encryption_key_env is not None:
            return SecretSource(f"{self.option}.encryption_key_env", variable=self.encryption_key_env)
        return None

    def cipher(self) -> Cipher | None:
        """Read the key, and return what encrypts with it. None: records are not encrypted."""
        return self.secret.cipher() if self.secret is not None else None

    @property
    def index(self) -> int:
        """Position in the list."""
        return self._index

    @property
    def option(self) -> str:
        """What error messages call it: `tiers[0]`."""
        return f"{self._list}[{self._index}]"

    @property
    def place(self) -> str:
        """Where it keeps bytes; two tiers must not have the same."""
        return f"{self.type}:"

    @property
    def shown(self) -> str:
        """What the start line says: type, place and size."""
        return f"{self.type} {self.place}"


class Kind(Protocol):
    """What a type's module provides.

    The last three are for operators. `place` is what one of them wrote: a path, or a URL with one of `URL_SCHEMES`;
    a `ConfigError` says that it cannot be used. `options` are some of `ACCESS`, and no secrets.
    """

    CONFIG: type[TierConfig]
    """What people can write about it."""
    URL_SCHEMES: tuple[str, ...]
    """What URLs of such a place begin with ("valkey://"); () for none."""
    ACCESS: tuple[str, ...]
    """Options that operators need as well, by their names in the option `tiers`; other ones are refused."""

    def open_tier(self, config: TierConfig, namespace: Namespace, slot_bytes_max: int) -> Tier:
        """Open the tier for the namespace's rank. A `ConfigError` if this place cannot be used at all."""

    def inspect(self, place: str, options: Mapping[str, object]) -> dict[str, object]:
        """Say what is there, as JSON.

        At least "records", "bytes", and "namespaces", a list of {"manifest": {...}, "records": n, "bytes": n}. Numbers
        that are not known are null.
        """

    def verify(self, place: str, options: Mapping[str, object], progress: Progress) -> Verified:
        """Read and check every record. Changes nothing."""

    def clear(self, place: str, options: Mapping[str, object], progress: Progress) -> int:
        """Remove everything of kvtide's. Returns the number of records removed."""


def tier_names(types: Sequence[str]) -> tuple[str, ...]:
    """Return what metrics call each tier: its type, and its position in the list if several are of that type.

    >>> tier_names(["disk", "valkey", "valkey"])
    ('disk', 'valkey-1', 'valkey-2')
    """
    return tuple(name if types.count(name) == 1 else f"{name}-{index}" for index, name in enumerate(types))


def parse_tiers(option: object, *, called: str = TIERS) -> tuple[TierConfig, ...]:
    """Read the option `tiers`, or raise what is wrong. Looks at paths, and at no server."""
    configs, errors = read_tiers(option, called=called)
    if errors:
        raise errors[0]
    return tuple(configs)


def read_tiers(option: object, *, called: str = TIERS) -> tuple[list[TierConfig], list[ConfigError]]:
    """Read the option `tiers`: return those that can be read, and everything that is wrong.

    `called` is what people call the option where they have written it.
    """
    if isinstance(option, str | bytes | Mapping) or not isinstance(option, Sequence):
        example = 'a list such as [{"type": "disk", "path": "/var/cache/kvtide", "size": "1GiB"}]'
        return [], [ConfigError(called, option, example)]
    configs: list[TierConfig] = []
    errors: list[ConfigError] = []
    places: dict[str, TierConfig] = {}
    for index, options in enumerate(option):
        config, wrong = _read_one(called, index, options)
        errors += wrong
        if config is None:
            continue
        if config.place in places:
            other = places[config.place].option
            errors.append(ConfigError(config.option, config.place, f"a place that is not already that of {other}"))
        places[config.place] = config
        configs.append(config)
    return configs, errors


def _read_one(called: str, index: int, options: object) -> tuple[TierConfig | None, list[ConfigError]]:
    name = f"{called}[{index}]"
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        example = 'an object such as {"type": "disk", "path": "/var/cache/kvtide", "size": "1GiB"}'
        return None, [ConfigError(name, options, example)]
    if "type" not in options:
        return None, [ConfigError(f"{name}.type", None, f"one of {', '.join(KINDS)}")]
    if "checksum" in options:
        always = "to be left out: every record has a checksum, always"
        return None, [ConfigError(f"{name}.checksum", options["checksum"], always)]
    try:
        kind = kind_of(f"{name}.type", options["type"])
    except ConfigError as unknown:
        return None, [unknown]
    return read_model(kind.CONFIG, options, f"{name}.", {"list": called, "index": index})


def kind_of(option: str, name: object) -> Kind:
    """Return the module of a type, importing it if that has not been done: some need packages that are optional."""
    if not isinstance(name, str) or name not in KINDS:
        raise ConfigError(option, name, unknown("type", str(name), KINDS))
    try:
        return cast(Kind, importlib.import_module(KINDS[name]))
    except ImportError as error:
        if name not in PACKAGES:
            raise
        raise ConfigError(option, name, f"its package: {install(name)} ({error})") from error


def open_tiers(configs: Sequence[TierConfig], namespace: Namespace, *, rank: int, slot_bytes_max: int) -> list[Tier]:
    """Open all tiers of one rank, or none.

    `slot_bytes_max`: bytes of a block. Where blocks are packed, those few that do not pack are larger.
    """
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
