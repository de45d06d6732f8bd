"""Options are checked at start, by name; passwords are never shown."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.redaction import redacted
from kvtide.tiers.config import parse_tiers
from kvtide.tiers.valkey import open_tier
from tests.tiers.shared.support import valkey_config
from tests.tiers.support import NAMESPACE


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("valkey://cache", "valkey://cache:6379/0"),
        ("redis://cache:7000/3", "valkey://cache:7000/3"),
        ("valkeys://cache:7000", "valkeys://cache:7000/0"),
        ("rediss://[::1]:7000", "valkeys://[::1]:7000/0"),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock?db=0"),
        ("unix:///run/valkey.sock?db=2", "unix:///run/valkey.sock?db=2"),
        ("valkey://user:pass@cache:7000", "valkey://cache:7000/0"),
    ],
)
def test_urls_are_read(url: str, place: str) -> None:
    assert valkey_config(url).place == place


@pytest.mark.parametrize(
    "url",
    [
        "",
        "cache:6379",
        "http://cache:6379",
        "valkey://",
        "valkey://:6379",
        "valkey://cache:port",
        "valkey://cache:70000",
        "valkey://cache:0",
        "valkey://my cache:6379",
        "valkey://cache..example",
        f"valkey://{'a' * 300}",
        f"valkey://cache/{'9' * 5000}",
        "valkey://cache/zero",
        "valkey://cache/0?ssl_cert_reqs=none",
        "unix://",
        "unix://run/valkey.sock",
        "unix:///run/valkey.sock?password=x",
        6379,
        None,
    ],
)
def test_urls_that_cannot_work_are_refused_by_name(url: object) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_tiers([{"type": "valkey", "url": url}])
    assert refusal.value.option == "tiers[0].url"


def test_a_url_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"tiers\[0\].url"):
        parse_tiers([{"type": "valkey"}])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"urll": "x"}, "urll"),
        ({"password": "x"}, "password"),
        ({"password_file": "/does/not/exist"}, "password_file"),
        ({"password_env": "KVTIDE_NOT_SET"}, "password_env"),
        ({"password_env": "HOME", "password_file": "/etc/hostname"}, "password_env"),
        ({"username": "someone"}, "username"),
        ({"tls_ca": "/etc/hostname"}, "tls_ca"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": "1h"}, "ttl_s"),
        ({"ttl_s": 10**30}, "ttl_s"),
        ({"password_file": "a\0b"}, "password_file"),
        ({"max_value": "lots"}, "max_value"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"deadline_ms": 10**13}, "deadline_ms"),
    ],
)
def test_other_options_are_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_tiers([{"type": "valkey", "url": "valkey://cache", **options}])
    assert refusal.value.option == f"tiers[0].{named}"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tls_ca": "/does/not/exist"}, "tls_ca"),
        ({"tls_ca": "a\0b"}, "tls_ca"),
        ({"tls_key": "/etc/hostname"}, "tls_key"),
        ({"tls_ca": "/etc"}, "tls_ca"),
        ({"tls_cert": "/etc"}, "tls_cert"),
        ({"tls_cert": "/etc/hostname", "tls_key": "/etc"}, "tls_key"),
    ],
)
def test_tls_options_are_refused_by_name(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_tiers([{"type": "valkey", "url": "valkeys://cache", **options}])
    assert refusal.value.option == f"tiers[0].{named}"


def test_two_tiers_at_the_same_place_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tiers\[0\]"):
        parse_tiers([{"type": "valkey", "url": "valkey://cache"}, {"type": "valkey", "url": "redis://u:p@cache:6379"}])


def test_blocks_that_no_value_can_hold_are_refused_at_start() -> None:
    config = valkey_config("valkey://127.0.0.1:1", max_value="1MiB")
    with pytest.raises(ConfigError, match=r"tiers\[0\].max_value"):
        open_tier(config, NAMESPACE, 1 << 20)


def test_the_password_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text("pass word\n")
    access = valkey_config("valkey://cache", password_file=str(file)).access
    assert (access.username, access.password) == (None, "pass word")
    monkeypatch.setenv("WORD", "secret")
    config = valkey_config("valkey://cache", username="kv", password_env="WORD")  # noqa: S106 - the variable's name
    assert (config.access.username, config.access.password) == ("kv", "secret")
    config = valkey_config("valkey://kv:p%40ss@cache")
    assert (config.access.username, config.access.password) == ("kv", "p@ss")


def test_passwords_are_in_no_text() -> None:
    config = valkey_config("valkey://kv:hunter2@cache")
    assert "hunter2" not in repr(config) + str(config) + config.place
    for url in (
        "valkey://kv:hunter2@",
        "valkey://kv:hunter2@cache:port",
        "ftp://kv:hunter2@cache",
        "valkey://kv:hunter2@c/x",
        ["valkey://kv:hunter2@cache"],
        "unix:///run/valkey.sock?db=0&password=hunter2",
        "valkey://cache?PASSWORD=hunter2",
    ):
        with pytest.raises(ConfigError) as refusal:
            parse_tiers([{"type": "valkey", "url": url}])
        assert "hunter2" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("scheme", ["valkey", "rediss"])
@pytest.mark.parametrize(
    "password", ["hunter/2", "hunter#2", "hunter?2", "50219/40733", "50219#40733", "50219?40733", "[hunter", "a℀b"]
)
def test_a_password_that_has_to_be_encoded_is_not_shown_and_the_error_says_so(scheme: str, password: str) -> None:
    with pytest.raises(ConfigError, match="percent-encoded") as refusal:
        parse_tiers([{"type": "valkey", "url": f"{scheme}://kv:{password}@cache:6379"}])
    assert refusal.value.value == f"{scheme}://kv:***@cache:6379"
    shown = "".join(traceback.format_exception(refusal.value))
    assert not any(part in shown for part in ("hunter", "50219", "40733", "a℀b"))


def test_the_path_of_a_socket_may_have_an_at_sign() -> None:
    assert valkey_config("unix:///run/a@b.sock").place == "unix:///run/a@b.sock?db=0"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("valkey://cache", "valkey://cache"),
        ("valkey://user@cache", "valkey://user@cache"),
        ("valkey://user:pass@cache", "valkey://user:***@cache"),
        ("valkey://:p@ss:w@cache", "valkey://:***@cache"),
        ("user:pass@cache", "user:***@cache"),
        ("valkey:/:pass@cache", "valkey:***@cache"),
        ("unix:///run/s?db=1&password=a&b", "unix:///run/s?db=1&password=***"),
        ("mooncake://h:1?metadata=redis://:pass@h", "mooncake://h:***@h"),
    ],
)
def test_urls_are_shown_without_passwords(url: str, shown: str) -> None:
    assert redacted(url) == shown
