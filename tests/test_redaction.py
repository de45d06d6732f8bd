"""No secret is in an error, whichever option it was written into."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtide.doctor.asked import read_asked
from kvtide.doctor.wanted import check_config, read_wanted
from kvtide.errors import ConfigError
from kvtide.redaction import without_secrets
from kvtide.vllm.options import check_options
from tests.command_line import run

WORD = "hunter2"
URL = f"valkey://kv:{WORD}@cache"
WRITTEN_WRONGLY: list[dict[str, object]] = [
    {"tiers": {"type": "valkey", "url": URL}},
    {"tiers": [[{"type": "valkey", "url": URL}]]},
    {"tiers": [URL]},
    {"tiers": URL},
    {"tiers": [{"type": "valkey", "url": {"password": WORD}}]},
    {"tiers": [{"type": "valkey", "url": "valkey://cache", "password": WORD}]},
    {"tiers": [{"type": "valkey", "url": "valkey://cache", "password": [WORD]}]},
    {"tiers": [{"type": "valkey", "url": "valkey://cache", "password_file": WORD}]},
    {"tiers": [{"type": "valkey", "url": "valkey://cache", "password_env": WORD}]},
    {"tiers": [{"type": "valkey", "url": "valkeys://cache", "tls_key": WORD, "tls_cert": __file__}]},
    {"tiers": [{"type": "null", "encryption_key_env": WORD}]},
    {"tiers": [{"type": "null", "encryption_key_file": WORD}]},
    {"tiers": [{"type": "mooncake", "master": f"kv:{WORD}@cache"}]},
    {"host": {"password": WORD}},
    {"auth_token": WORD},
]


@pytest.mark.parametrize("extra", WRITTEN_WRONGLY, ids=json.dumps)
def test_what_is_refused_is_shown_without_the_secret_in_it(
    extra: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    _, errors = check_options(extra)
    assert errors, "or the test shows nothing"
    found = check_config(read_wanted(read_asked(json.dumps(extra))))
    said = [*map(str, errors), *map(repr, errors), found.found, found.advice]
    said += [*run(capsys, "check", json.dumps(extra))[1:], *run(capsys, "check", "--json", json.dumps(extra))[1:]]
    assert not [text for text in said if WORD in text]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("tiers[0].password_file", "/etc/kvtide/password"),
        ("tiers[0].encryption_key_file", "./key"),
        ("tls_key", "~/key.pem"),
        ("password_env", "VALKEY_PASSWORD"),
        ("min_load_tokens", "fast"),
        ("--bytes-per-token", "many"),
        ("--tokenizer", "words"),
        ("host", "64GiB"),
        ("password", ""),
        ("mode", True),
    ],
)
def test_what_helps_to_find_the_mistake_is_shown(option: str, value: object) -> None:
    assert without_secrets(option, value) == value
    assert repr(value) in str(ConfigError(option, value, "another"))


def test_a_key_that_was_written_where_its_file_belongs_is_hidden(tmp_path: Path) -> None:
    key = "AB" * 32
    for name in ("encryption_key_file", "encryption_key_env"):
        _, (error,) = check_options({"tiers": [{"type": "null", name: key}]})
        assert key not in str(error)
