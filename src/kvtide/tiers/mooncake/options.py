"""The options of a Mooncake tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from kvtide.errors import ConfigError
from kvtide.options import parse_choice, parse_size, redacted
from kvtide.tiers.config import TierConfig, common, text_option

URL_SCHEMES = ("mooncake://",)
ACCESS: tuple[str, ...] = ()
OPTIONS: Mapping[str, str] = {
    "master": "host:port of mooncake_master",
    "metadata": "its metadata server (default: http://HOST:8080/metadata on the master's host), or P2PHANDSHAKE",
    "hostname": "name or address of this machine under which the other clients reach it (default: 127.0.0.1)",
    "segment": "memory that this engine lends to the store (default: none; some client has to lend some)",
    "protocol": "tcp or rdma (default: tcp)",
    "devices": "RDMA devices, with commas between",
}

THREADS = 6
"""Four wait for bytes that are on their way (`transfers`), and two seal and verify meanwhile."""
_MASTER_PORT = 50051
_METADATA_PORT = 8080
_MASTER_EXPECTED = "host:port of mooncake_master, for example cache.example:50051"
_METADATA_EXPECTED = "a URL such as http://cache.example:8080/metadata, host:port of an etcd server, or P2PHANDSHAKE"


class Address(NamedTuple):
    """Where a store is."""

    master: str
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeConfig(TierConfig):
    """A Mooncake store that several engines share."""

    address: Address
    hostname: str
    segment_bytes: int
    protocol: str
    devices: str

    @property
    def place(self) -> str:
        """Where it keeps bytes."""
        return f"mooncake://{self.address.master}"


def parse(index: int, options: Mapping[str, object]) -> MooncakeConfig:
    """Read the options of one tier. Asks no server."""
    shared = common(index, options, OPTIONS, threads=THREADS)
    prefix = f"tiers[{index}]."
    master = text_option(prefix, "master", options, OPTIONS)
    if master is None:
        raise ConfigError(f"{prefix}master", None, _MASTER_EXPECTED)
    metadata = text_option(prefix, "metadata", options, OPTIONS)
    if metadata is not None:
        _check_metadata(f"{prefix}metadata", metadata)
    segment = options.get("segment", 0)
    return MooncakeConfig(
        **shared,
        address=address_of(f"{prefix}master", master, metadata),
        hostname=text_option(prefix, "hostname", options, OPTIONS) or "127.0.0.1",
        segment_bytes=0 if segment == 0 and segment is not False else parse_size(f"{prefix}segment", segment),
        protocol=parse_choice(f"{prefix}protocol", options.get("protocol", "tcp"), ("tcp", "rdma")),
        devices=text_option(prefix, "devices", options, OPTIONS) or "",
    )


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
