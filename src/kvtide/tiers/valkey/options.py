"""The options of a Valkey tier. Passwords are read here, and shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import Field, PrivateAttr, model_validator

from kvtide.errors import ConfigError
from kvtide.redaction import redacted
from kvtide.schema import SIZE, Read, text, whole
from kvtide.tiers.config import THREADS, TierConfig

PLAIN, TLS, UNIX = ("valkey", "redis"), ("valkeys", "rediss"), ("unix",)
URL_SCHEMES = tuple(f"{scheme}://" for scheme in (*PLAIN, *TLS, *UNIX))

ACCESS = ("username", "password_file", "password_env", "tls_ca", "tls_cert", "tls_key")
"""Options that operators need as well."""

DEFAULT_PORT = 6379
TTL_S_MAX = 10 * 365 * 24 * 3600
_DATABASE_DIGITS_MAX = 9
_URL_EXPECTED = "a URL such as valkey://cache.example:6379, valkeys://… for TLS, or unix:///run/valkey.sock"
_ENCODED_EXPECTED = (
    "special characters in user and password percent-encoded (/ as %2F, # as %23, ? as %3F), "
    "or the password in password_file or password_env"
)


class Address(NamedTuple):
    """Where the server is."""

    host: str
    port: int
    path: str
    """Of a Unix socket; empty for TCP."""
    database: int
    tls: bool

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}?db={self.database}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'valkeys' if self.tls else 'valkey'}://{host}:{self.port}/{self.database}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to get in. Its text has no password in it."""

    address: Address
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


def _url(option: str, value: object) -> str:
    _parse_url(option, value)
    return str(value)


def _file(what: str) -> Read:
    return text(f"the path of a file: {what}")


class ValkeyConfig(TierConfig):
    """A Valkey server that several engines share. Reading it reads passwords, and asks no server."""

    url: Annotated[str, Read(_url, {"type": "string"})] = Field(
        description="`valkey://host:6379`, `valkeys://host:6379` (TLS) or `unix:///path`; `redis://` and `rediss://` "
        "mean the same; `/2` or `?db=2` for a database",
        examples=["valkeys://cache.example:6379"],
        repr=False,
    )
    username: Annotated[str | None, text("an ACL user")] = Field(
        default=None, description="ACL user", json_schema_extra={"default_text": "the server's default user"}
    )
    password_file: Annotated[str | None, _file("the password")] = Field(
        default=None,
        description="file with the password. In the URL it works too, where whoever lists processes reads it",
    )
    password_env: Annotated[str | None, text("the name of an environment variable")] = Field(
        default=None, description="environment variable with the password"
    )
    tls_ca: Annotated[str | None, _file("certificates to trust")] = Field(
        default=None,
        description="file with the certificates to trust. The server's name is checked, always",
        json_schema_extra={"default_text": "the system's"},
    )
    tls_cert: Annotated[str | None, _file("this client's certificate")] = Field(
        default=None, description="file with this client's certificate, where the server asks for one"
    )
    tls_key: Annotated[str | None, _file("the key of tls_cert")] = Field(
        default=None, description="file with the key of that certificate"
    )
    ttl_s: Annotated[int | None, whole(1, TTL_S_MAX, ", which is ten years; leave it out for never")] = Field(
        default=None,
        description="seconds after which the server forgets a block; at most ten years",
        json_schema_extra={"default_text": "never"},
    )
    max_value: Annotated[int, SIZE] = Field(
        default=512 << 20,
        description="largest value that the server takes (`proto-max-bulk-len`)",
        json_schema_extra={"default_text": '`"512MiB"`'},
    )
    threads: Annotated[int, THREADS] = Field(
        default=4, description="also the number of connections; one of them is kept free for lookups and gets"
    )
    _access: Access = PrivateAttr()

    @model_validator(mode="after")
    def _get_in(self) -> ValkeyConfig:
        self._access = parse_access(self.url, self.model_dump(include=set(ACCESS), exclude_none=True))
        return self

    @property
    def access(self) -> Access:
        """How to get in."""
        return self._access

    @property
    def place(self) -> str:
        """Where it keeps bytes."""
        return str(self._access.address)


CONFIG = ValkeyConfig


def parse_access(url: object, options: Mapping[str, str]) -> Access:
    """Read a URL and the options that have to do with getting in (`ACCESS`)."""
    parts, address = _parse_url("url", url)
    password = _password(options)
    if parts.password is not None:
        if password is not None:
            raise ConfigError("url", redacted(str(url)), "no password in the URL beside password_file or password_env")
        password = unquote(parts.password)
    username = options.get("username") or (unquote(parts.username) if parts.username else None)
    if username is not None and password is None:
        raise ConfigError("username", username, "a password as well: password_file or password_env")
    tls = {name: _readable(name, options) for name in ("tls_ca", "tls_cert", "tls_key")}
    for name, value in tls.items():
        if value is not None and not address.tls:
            raise ConfigError(name, value, "a URL with TLS, valkeys:// or rediss://")
    if tls["tls_key"] is not None and tls["tls_cert"] is None:
        raise ConfigError("tls_key", tls["tls_key"], "tls_cert as well")
    return Access(address=address, username=username, password=password, **tls)


def _parse_url(option: str, url: object) -> tuple[SplitResult, Address]:
    if not isinstance(url, str):
        raise ConfigError(option, redacted(str(url)) if "@" in str(url) else url, _URL_EXPECTED)
    shown = redacted(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        # Neither the error nor its text is shown where it may hold a part of the password.
        expected = _ENCODED_EXPECTED if "@" in url else f"{_URL_EXPECTED} ({error})"
        raise ConfigError(option, shown, expected) from None
    if parts.scheme in UNIX:
        if not parts.path or host:
            raise ConfigError(option, shown, "the path of a socket with three slashes: unix:///run/valkey.sock")
        return parts, Address("", 0, unquote(parts.path), _database_of_query(option, shown, parts.query), False)
    if parts.scheme not in (*PLAIN, *TLS):
        raise ConfigError(option, shown, _URL_EXPECTED)
    if "@" in url and "@" not in parts.netloc:
        raise ConfigError(option, shown, _ENCODED_EXPECTED)  # a password that begins with digits looked like a port
    if not _can_be_host(host):
        raise ConfigError(option, shown, "a host: " + _URL_EXPECTED)
    if port == 0:
        raise ConfigError(option, shown, f"a port from 1 to 65535, or none for {DEFAULT_PORT}")
    if parts.query or parts.fragment:
        raise ConfigError(option, shown, "nothing after the database; tls_ca and the like are options of their own")
    database = _database(option, shown, parts.path.strip("/"))
    return parts, Address(host, port or DEFAULT_PORT, "", database, parts.scheme in TLS)


def _can_be_host(host: str) -> bool:
    """Say whether a name can be looked up at all; whether anybody has it is another matter."""
    try:
        host.encode("idna")  # as the system's resolver is asked
    except UnicodeError:
        return False
    return bool(host) and host.isprintable() and not any(letter.isspace() for letter in host)


def _database_of_query(option: str, shown: str, query: str) -> int:
    names = dict(parse_qsl(query, keep_blank_values=True))
    if set(names) - {"db"}:
        raise ConfigError(option, shown, "nothing but db=NUMBER after the question mark")
    return _database(option, shown, names.get("db", ""))


def _database(option: str, shown: str, text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > _DATABASE_DIGITS_MAX:
        raise ConfigError(option, shown, "the number of a database at the end, or nothing")
    return int(text)


def _password(options: Mapping[str, str]) -> str | None:
    file, variable = options.get("password_file"), options.get("password_env")
    if file is not None and variable is not None:
        raise ConfigError("password_env", variable, "either password_file or password_env")
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise ConfigError("password_file", file, f"a file that can be read ({why})") from None
    if variable is not None:
        if variable not in os.environ:
            raise ConfigError("password_env", variable, "an environment variable that is set")
        return os.environ[variable]
    return None


def _readable(name: str, options: Mapping[str, str]) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    if "\0" in value or not os.access(value, os.R_OK):
        raise ConfigError(name, value, "a file that exists and can be read")
    if os.path.isdir(value):
        raise ConfigError(name, value, "a file, and this is a folder")
    return value
