"""The options of a Valkey tier. Passwords are read here, and shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from kvtide.errors import ConfigError
from kvtide.options import parse_count, parse_size, redacted
from kvtide.tiers.config import TierConfig, common, text_option

PLAIN, TLS, UNIX = ("valkey", "redis"), ("valkeys", "rediss"), ("unix",)
URL_SCHEMES = tuple(f"{scheme}://" for scheme in (*PLAIN, *TLS, *UNIX))

OPTIONS: Mapping[str, str] = {
    "url": "valkey://host:6379, valkeys://host:6379 (TLS) or unix:///path; redis:// and rediss:// mean the same",
    "username": "ACL user (default: the server's default user)",
    "password_file": "file with the password",
    "password_env": "environment variable with the password",
    "tls_ca": "file with the certificates to trust (default: the system's)",
    "tls_cert": "file with this client's certificate, where the server asks for one",
    "tls_key": "file with the key of that certificate",
    "ttl_s": "seconds after which the server forgets a block (default: never)",
    "max_value": "largest record that the server takes (default: 512MiB, as servers have it)",
}
ACCESS = ("username", "password_file", "password_env", "tls_ca", "tls_cert", "tls_key")
"""Options that operators need as well."""

THREADS = 4
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ValkeyConfig(TierConfig):
    """A Valkey server that several engines share."""

    access: Access
    ttl_s: int | None
    max_value_bytes: int

    @property
    def place(self) -> str:
        """Where it keeps bytes."""
        return str(self.access.address)


def parse(index: int, options: Mapping[str, object]) -> ValkeyConfig:
    """Read the options of one tier. Asks no server."""
    shared = common(index, options, OPTIONS, threads=THREADS)
    prefix = f"tiers[{index}]"
    if "url" not in options:
        raise ConfigError(f"{prefix}.url", None, _URL_EXPECTED)
    return ValkeyConfig(
        **shared,
        access=parse_access(prefix, options["url"], options),
        ttl_s=_ttl_s(f"{prefix}.ttl_s", options["ttl_s"]) if "ttl_s" in options else None,
        max_value_bytes=parse_size(f"{prefix}.max_value", options.get("max_value", 512 << 20)),
    )


def parse_access(prefix: str, url: object, options: Mapping[str, object]) -> Access:
    """Read a URL and the options that have to do with getting in. `prefix` says whose, in errors."""
    option = f"{prefix}.url" if prefix else "url"
    dot = f"{prefix}." if prefix else ""
    parts, address = _parse_url(option, url)
    password = _password(dot, options)
    if parts.password is not None:
        if password is not None:
            raise ConfigError(option, redacted(str(url)), "no password in the URL, for an option names another")
        password = unquote(parts.password)
    username = text_option(dot, "username", options, OPTIONS) or (unquote(parts.username) if parts.username else None)
    if username is not None and password is None:
        raise ConfigError(f"{dot}username", username, "a password as well: password_file or password_env")
    tls = {name: _readable(dot, name, options) for name in ("tls_ca", "tls_cert", "tls_key")}
    for name, value in tls.items():
        if value is not None and not address.tls:
            raise ConfigError(f"{dot}{name}", value, "a URL with TLS, valkeys:// or rediss://")
    if tls["tls_key"] is not None and tls["tls_cert"] is None:
        raise ConfigError(f"{dot}tls_key", tls["tls_key"], "tls_cert as well")
    return Access(address=address, username=username, password=password, **tls)


def _ttl_s(option: str, value: object) -> int:
    ttl_s = parse_count(option, value)
    if ttl_s > TTL_S_MAX:
        raise ConfigError(option, ttl_s, f"at most {TTL_S_MAX}, which is ten years; leave it out for never")
    return ttl_s


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


def _password(dot: str, options: Mapping[str, object]) -> str | None:
    file, variable = (
        text_option(dot, "password_file", options, OPTIONS),
        text_option(dot, "password_env", options, OPTIONS),
    )
    if file is not None and variable is not None:
        raise ConfigError(f"{dot}password_env", variable, "either password_file or password_env")
    if file is not None:
        try:
            return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise ConfigError(f"{dot}password_file", file, f"a file that can be read ({why})") from None
    if variable is not None:
        if variable not in os.environ:
            raise ConfigError(f"{dot}password_env", variable, "an environment variable that is set")
        return os.environ[variable]
    return None


def _readable(dot: str, name: str, options: Mapping[str, object]) -> str | None:
    value = text_option(dot, name, options, OPTIONS)
    if value is None:
        return None
    if "\0" in value or not os.access(value, os.R_OK):
        raise ConfigError(f"{dot}{name}", value, "a file that exists and can be read")
    if os.path.isdir(value):
        raise ConfigError(f"{dot}{name}", value, f"a file, and this is a folder: {OPTIONS[name]}")
    return value
