"""What a node is told: on the command line, in a file, or both."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kvtide.copy.memory_left import MemoryLeft
from kvtide.core import POLICIES
from kvtide.errors import ConfigError
from kvtide.node import settings
from kvtide.node.settings import NodeSettings, options_of, read_settings
from kvtide.node.shares import Share

NEEDED: dict[str, Any] = {"memory": "1MiB", "socket": "node.sock"}


def test_settings_are_read_as_people_write_them() -> None:
    found = read_settings({**NEEDED, "group": str(os.getegid())})
    assert found == NodeSettings(Path.cwd() / "node.sock", 1 << 20, "prefix", (), os.getegid(), None)
    everything = {**NEEDED, "policy": "lru", "share": ["a=40%"], "group": "root", "metrics": 9400}
    assert read_settings(everything) == NodeSettings(
        Path.cwd() / "node.sock", 1 << 20, "lru", (Share("a", 40),), 0, 9400
    )
    assert {read_settings({**NEEDED, "policy": policy}).policy for policy in POLICIES} == set(POLICIES)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("memory", "much", "a size in bytes above 0"),
        ("memory", "64", "at least 4096 bytes; a number alone is bytes, not GiB"),
        ("socket", 7, "a path"),
        ("socket", "", "a path"),
        ("policy", "lur", 'did you mean "lru"'),
        ("share", ["a"], "a model and its share"),
        ("group", "no-such-group", "a group of this machine"),
        ("group", True, "a group of this machine"),
        ("metrics", "9400", "a whole number of at least 0"),
        ("metrics", -1, "a whole number of at least 0"),
        ("metrics", 65536, "a port, at most 65535"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(option: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as refused:
        read_settings({**NEEDED, option: value})
    assert refused.value.option == option


def test_more_memory_than_there_is_left_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "memory_left", lambda: MemoryLeft(10, "this machine has left"))
    with pytest.raises(ConfigError, match="memory='1MiB': expected at most the 10 bytes that this machine has left"):
        read_settings(NEEDED)


def test_options_may_be_in_a_file_and_those_beside_it_win(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text(json.dumps({**NEEDED, "share": ["a=40%"], "metrics": 0}))
    written = {"memory": "2MiB", "socket": None, "policy": None, "share": (), "group": None, "metrics": None}
    expected = {"memory": "2MiB", "socket": "node.sock", "share": ["a=40%"], "metrics": 0}
    assert options_of(str(file), written) == expected
    assert options_of(file.read_text(), written) == expected
    assert options_of(str(file), {"share": ("b=10%",), "metrics": 5}) == {**NEEDED, "share": ("b=10%",), "metrics": 5}
    assert options_of(None, written) == {"memory": "2MiB"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"memroy": "1GiB"}', r"config='memroy': expected options of a node; did you mean \"memory\"\? known are"),
        ("{", "config='…': expected JSON"),
        ("[1]", "config='…': expected an object such as"),
        ("/no/such/file", r"config='/no/such/file': expected JSON, or a file with it that can be read \(No such file"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        options_of(text, {})
