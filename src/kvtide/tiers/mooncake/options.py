"""The options of a Mooncake tier."""

from __future__ import annotations

from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field

from kvtide.errors import ConfigError
from kvtide.options import parse_size
from kvtide.redaction import redacted
from kvtide.schema import SIZE, Read, one_of, text
from kvtide.tiers.config import THREADS, TierConfig

URL_SCHEMES = ("mooncake://",)
ACCESS: tuple[str, ...] = ()
_MASTER_PORT = 50051
_METADATA_PORT = 8080
_MASTER_EXPECTED = "host:port of mooncake_master, for example cache.example:50051"
_METADATA_EXPECTED = "a URL such as http://cache.example:8080/metadata, host:port of an etcd server, or P2PHANDSHAKE"


class Address(NamedTuple):
    """Where a store is."""

    master: str
    metadata: str


def _master(option: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(option, value, _MASTER_EXPECTED)
    address_of(option, value, None)
    return value


def _metadata(option: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(option, value, _METADATA_EXPECTED)
    _check_metadata(option, value)
    return value


def _segment(option: str, value: object) -> int:
    return 0 if value == 0 and value is not False else parse_size(option, value)


class MooncakeConfig(TierConfig):
    """A Mooncake store that several engines share. Asks no server."""

    master: Annotated[str, Read(_master, {"type": "string"})] = Field(
        description="`host:port` of `mooncake_master` (port: 50051)", examples=["cache.example:50051"]
    )
    metadata: Annotated[str | None, Read(_metadata, {"type": "string"})] = Field(
        default=None,
        description="its metadata server, or `P2PHANDSHAKE` (not tested)",
        json_schema_extra={"default_text": "`http://HOST:8080/metadata` on the master's host"},
    )
    hostname: Annotated[str, text("name or address of this machine")] = Field(
        default="127.0.0.1", description="name or address of this machine under which the other clients reach it"
    )
    segment: Annotated[int, Read(_segment, {"anyOf": [{"const": 0}, SIZE.json_schema]})] = Field(
        default=0,
        description="memory that this engine lends to the store; some client has to lend some",
        json_schema_extra={"default_text": "none"},
    )
    protocol: Annotated[str, one_of("tcp", "rdma")] = Field(
        default="tcp", description="`tcp`, or `rdma`, which is written for, and not tested"
    )
    devices: Annotated[str, text("RDMA devices, with commas between")] = Field(
        default="", description="RDMA devices, with commas between", json_schema_extra={"default_text": ""}
    )
    threads: Annotated[int, THREADS] = Field(
        default=6,
        description="four wait for bytes under way, two seal and verify; the client has threads of its own for the "
        "network",
    )

    @property
    def address(self) -> Address:
        """Where the store is."""
        return address_of("master", self.master, self.metadata)

    @property
    def place(self) -> str:
        """Where it keeps bytes."""
        return f"mooncake://{self.address.master}"


CONFIG = MooncakeConfig


def parse_place(place: str) -> Address:
    """Read what operators write: mooncake://host:port, and ?metadata=URL if that is not the usual one."""
    refusal = ConfigError("url", redacted(place), "mooncake://host:port, or mooncake://host:port?metadata=URL")
    try:
        parts = urlsplit(place)
    except ValueError:
        raise refusal from None
    query = dict(parse_qsl(parts.query))
    if parts.scheme != "mooncake" or set(query) - {"metadata"}:
        raise refusal
    if "metadata" in query:
        _check_metadata("url", query["metadata"])
    return address_of("url", parts.netloc, query.get("metadata"))


def address_of(option: str, master: str, metadata: str | None) -> Address:
    """Complete an address with the usual ports."""
    try:
        parts = urlsplit(f"//{master}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(option, redacted(master), _MASTER_EXPECTED) from None
    if not host or port == 0 or parts.path or parts.query or "@" in master:
        raise ConfigError(option, redacted(master), _MASTER_EXPECTED)
    shown = f"[{host}]" if ":" in host else host
    return Address(f"{shown}:{port or _MASTER_PORT}", metadata or f"http://{shown}:{_METADATA_PORT}/metadata")


def _check_metadata(option: str, metadata: str) -> None:
    """Refuse what is no address at all. Mooncake takes one without a scheme for that of etcd."""
    if ":" not in metadata and metadata != "P2PHANDSHAKE":
        raise ConfigError(option, metadata, _METADATA_EXPECTED)
