"""The option `tiers`: everything either means what it says or is refused by name, with what to do (F22)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.tiers import encryption, open_tiers, parse_tiers
from kvtide.tiers.disk.options import DiskConfig
from tests.tiers.disk.test_faults import forbid
from tests.tiers.support import NAMESPACE, disk_config, disk_store


def disk(folder: Path, /, **options: object) -> dict[str, object]:
    return {"type": "disk", "path": str(folder), "size": "4MiB", **options}


def refusal(option: object) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_tiers(option)
    return str(refused.value)


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    (config,) = parse_tiers([disk(tmp_path)])
    assert isinstance(config, DiskConfig)
    assert (config.deadline_ms, config.write, config.admit, config.threads, config.io) == (
        50,
        "through",
        "all",
        4,
        "auto",
    )
    assert (config.path, config.size, config.secret) == (tmp_path, 4 << 20, None)


def test_everything_can_be_said(tmp_path: Path) -> None:
    options = {"deadline_ms": 7, "write": "evict", "admit": "second-use", "threads": 2, "io": "buffered"}
    (config,) = parse_tiers([disk(tmp_path, **options)])
    assert {name: getattr(config, name) for name in options} == options


def test_the_older_name_of_second_use_is_understood(tmp_path: Path) -> None:
    (config,) = parse_tiers([disk(tmp_path, admit="second-touch")])
    assert config.admit == "second-use"


def test_no_tiers_are_tiers_too() -> None:
    assert parse_tiers([]) == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline_ms": "50"}, "tiers[0].deadline_ms='50': expected a whole number of at least 1"),
        ({"deadline_ms": 10**13}, "tiers[0].deadline_ms=10000000000000: expected at most 3600000, which is an hour"),
        ({"write": "back"}, "tiers[0].write='back': expected one of"),
        ({"admit": True}, "tiers[0].admit=True: expected one of"),
        ({"threads": 0}, "tiers[0].threads=0: expected a whole number of at least 1"),
        ({"threads": 1000}, "tiers[0].threads=1000: expected at most 64"),
        ({"checksum": False}, "tiers[0].checksum=False: expected to be left out: every record has a checksum"),
        ({"sise": "1GiB"}, "tiers[0].sise='1GiB': expected a known option; did you mean \"size\"? known are"),
        ({"size": "much"}, "tiers[0].size='much': expected a size in bytes above 0"),
        ({"size": None}, "tiers[0].size: expected a size in bytes above 0"),
        ({"size": "900TB"}, "tiers[0].size='900TB': expected at most the "),
        ({"size": "500"}, "tiers[0].size='500': expected at least "),
        ({"path": ""}, "tiers[0].path='': expected the path of a folder"),
        ({"path": 7}, "tiers[0].path=7: expected the path of a folder"),
        ({"path": "/no/such/folder"}, "tiers[0].path='/no/such/folder': expected a folder that exists: mkdir -p"),
        ({"path": "/etc/passwd"}, "tiers[0].path='/etc/passwd': expected a folder, and this is a file"),
        (
            {"path": "/" + "a" * 5000},
            f"tiers[0].path='/{'a' * 5000}': expected a folder that can be used (File name too",
        ),
        ({"path": "~nosuchuser/x"}, "tiers[0].path='~nosuchuser/x': expected a path from the root: ~nosuchuser is no"),
        ({"io": "fast"}, "tiers[0].io='fast': expected one of auto, direct, buffered, cached"),
        ({"type": "dsik"}, "tiers[0].type='dsik': expected a known type; did you mean \"disk\"? known are"),
        ({"type": 5}, "tiers[0].type=5: expected a known type"),
        (
            {"encryption_key_file": "/no/key"},
            "tiers[0].encryption_key_file='/no/key': expected a file that can be read",
        ),
        ({"encryption_key_env": "NO_KEY"}, "tiers[0].encryption_key_env='NO_KEY': expected an environment variable"),
        ({"encryption_key_env": ""}, "tiers[0].encryption_key_env='': expected the name of an environment variable"),
        (
            {"encryption_key_env": "A", "encryption_key_file": "b"},
            "tiers[0].encryption_key_env='A': expected either encryption_key_file or encryption_key_env",
        ),
    ],
)
def test_f22_what_cannot_work_is_refused_by_name(tmp_path: Path, options: dict[str, object], message: str) -> None:
    assert refusal([disk(tmp_path, **options)]).startswith(message)


def test_f22_a_key_without_the_package_that_encrypts_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "ab" * 32)
    monkeypatch.setattr(encryption, "find_spec", lambda _: None)
    message = "tiers[0].encryption_key_env='KEY': expected the package cryptography: pip install 'cryptography>="
    assert refusal([disk(tmp_path, encryption_key_env="KEY")]).startswith(message)


@pytest.mark.parametrize("option", ["disk", {"type": "disk"}, None, 3, b"disk"])
def test_tiers_are_a_list(option: object) -> None:
    assert refusal(option).startswith("tiers: " if option is None else "tiers=")


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        ("disk", "tiers[0]='disk': expected an object"),
        ({}, "tiers[0].type: expected one of disk"),
        ({1: 2}, "tiers[0]={1: 2}: expected an object"),
    ],
)
def test_each_tier_is_an_object_with_a_type(tier: object, message: str) -> None:
    assert refusal([tier]).startswith(message)


def test_two_tiers_at_the_same_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "here")
    message = refusal([disk(tmp_path / "here"), disk(tmp_path / "link" / ".." / "here")])
    assert message.startswith("tiers[1]=")
    assert "tiers[0]" in message


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "expected a folder that this user can write" in refusal([disk(tmp_path)])


@pytest.mark.parametrize("name", ["kvtide-store.json", "rank-0-of-1"])
def test_a_store_of_another_user_is_refused_and_not_called_one_of_another_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    disk_store(tmp_path).close()
    forbid(monkeypatch, tmp_path / name)
    message = refusal([disk(tmp_path)])
    assert message.startswith(f"tiers[0].path='{tmp_path}': expected a folder that this user may read and write (")
    assert f"{tmp_path / name}: Permission denied" in message
    assert "run this as the user who owns" in message
    assert "format" not in message


def test_a_size_below_one_block_is_refused(tmp_path: Path) -> None:
    config = disk_config(tmp_path, 100_000)
    with pytest.raises(ConfigError, match=r"tiers\[0\].size=100000: expected at least \d+ bytes, for one block"):
        open_tiers([config], NAMESPACE, rank=0, slot_bytes_max=1 << 20)


def test_when_one_tier_cannot_be_opened_those_before_it_are_closed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    configs = parse_tiers([disk(tmp_path / "a"), disk(tmp_path / "b", size=81_920)])
    with pytest.raises(ConfigError, match=r"tiers\[1\].size"):
        open_tiers(configs, NAMESPACE, rank=0, slot_bytes_max=8192)
    (tier,) = open_tiers(configs[:1], NAMESPACE, rank=0, slot_bytes_max=8192)
    assert tier.close()


# ---------------------------------------------------------------------- keys


def test_a_key_comes_from_a_file_or_a_variable_and_is_not_in_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("ab" * 32 + "\n")
    monkeypatch.setenv("KVTIDE_TEST_KEY", "ab" * 32)
    for option in ({"encryption_key_file": str(secret)}, {"encryption_key_env": "KVTIDE_TEST_KEY"}):
        (config,) = parse_tiers([disk(tmp_path, **option)])
        assert config.secret is not None
        assert config.secret.read() == b"\xab" * 32
        assert "abab" not in repr(config)


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "ab" * 31])
def test_a_key_that_is_none_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(text)
    message = refusal([disk(tmp_path, encryption_key_file=str(secret))])
    assert "64 hexadecimal digits" in message
    assert not text or text not in message


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o644)
    assert "chmod 600" in refusal([disk(tmp_path, encryption_key_file=str(secret))])
