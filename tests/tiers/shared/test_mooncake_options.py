"""Options of Mooncake tiers are checked at start, by name."""

from __future__ import annotations

import pytest

from kvtide.errors import ConfigError
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.mooncake.options import MooncakeConfig, parse_place


def test_addresses_are_completed_with_the_usual_ports() -> None:
    (config,) = parse_tiers([{"type": "mooncake", "master": "cache.example"}])
    assert isinstance(config, MooncakeConfig)
    assert config.address == ("cache.example:50051", "http://cache.example:8080/metadata")
    assert config.place == "mooncake://cache.example:50051"
    assert config.segment == 0


def test_all_options_are_read() -> None:
    options = {"master": "h:1", "metadata": "P2PHANDSHAKE", "hostname": "me", "segment": "1GiB", "protocol": "rdma"}
    (config,) = parse_tiers([{"type": "mooncake", **options, "devices": "mlx5_0"}])
    assert isinstance(config, MooncakeConfig)
    assert config.address == ("h:1", "P2PHANDSHAKE")
    assert (config.hostname, config.segment, config.protocol, config.devices) == ("me", 1 << 30, "rdma", "mlx5_0")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "master"),
        ({"master": ""}, "master"),
        ({"master": ":50051"}, "master"),
        ({"master": "h:port"}, "master"),
        ({"master": "user@h:1"}, "master"),
        ({"master": "h/path"}, "master"),
        ({"master": "h:0"}, "master"),
        ({"master": "h", "metadata": 8080}, "metadata"),
        ({"master": "h", "metadata": "nonsense"}, "metadata"),
        ({"master": "h", "metadata": "p2phandshake"}, "metadata"),
        ({"master": "h", "segment": "lots"}, "segment"),
        ({"master": "h", "segment": False}, "segment"),
        ({"master": "h", "protocol": "udp"}, "protocol"),
        ({"master": "h", "masster": "h"}, "masster"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_tiers([{"type": "mooncake", **options}])
    assert refusal.value.option == f"tiers[0].{named}"


def test_places_are_read_as_operators_write_them() -> None:
    assert parse_place("mooncake://h:1") == ("h:1", "http://h:8080/metadata")
    assert parse_place("mooncake://h:1?metadata=http://h:2/metadata") == ("h:1", "http://h:2/metadata")
    assert parse_place("mooncake://h:1?metadata=etcd.example:2379") == ("h:1", "etcd.example:2379")
    for place in ("mooncake://", "http://h", "mooncake://h?other=1", "mooncake://h?metadata=x", "mooncake://[::1"):
        with pytest.raises(ConfigError, match="url"):
            parse_place(place)


@pytest.mark.parametrize("place", ["mooncake://u:hunter2@h:1", "mooncake://h?other=redis://:hunter2@h"])
def test_passwords_are_not_shown(place: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_place(place)
    assert "hunter2" not in str(refusal.value)
