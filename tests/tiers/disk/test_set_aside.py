"""A folder whose store has another format, or a damaged marker: the tier starts empty and says so."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvtide.errors import ConfigError
from kvtide.tiers.disk import set_aside
from kvtide.tiers.disk.store_folder import used_bytes
from tests.command_line import run
from tests.tiers.disk.test_backend import fill, items, served
from tests.tiers.support import disk_store

MARKER = "kvtide-store.json"
WRITTEN = {
    "a newer version": ('{"format": 99}', "99"),
    "an older version": ('{"format": 0}', "unknown"),
    "nobody can tell": ("nonsense", "unknown"),
    "half a file": ('{"form', "unknown"),
    "an empty file": ("", "unknown"),
    "no number": ('{"format": "1"}', "unknown"),
    "another file of that name": ("[]", "unknown"),
}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    fill(tmp_path)
    (tmp_path / "holiday.jpg").write_text("a beach")
    return tmp_path


def segments(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("rank-0-of-1/segment-*")}


@pytest.mark.parametrize("case", WRITTEN)
def test_the_tier_starts_empty_and_what_was_there_is_kept_beside_it(
    filled: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    content, shown = WRITTEN[case]
    (filled / MARKER).write_text(content)
    before = segments(filled)
    store = disk_store(filled)
    assert served(store, range(10)) == []
    store.put(items(range(20, 25)))
    store.close()
    aside = filled / f"format-{shown}"
    assert segments(aside) == before
    assert (aside / MARKER).read_text() == content
    assert (filled / "holiday.jpg").read_text() == "a beach"
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"the store in {filled} has format {shown}" in line
    assert "starts empty" in line
    assert f"`kvtide tier clear {aside}` removes it" in line


def test_the_next_start_is_warm_and_says_nothing(filled: Path, caplog: pytest.LogCaptureFixture) -> None:
    (filled / MARKER).write_text('{"format": 99}')
    store = disk_store(filled)
    store.put(items(range(5)))
    store.close()
    caplog.clear()
    store = disk_store(filled)
    assert served(store, range(5)) == list(range(5))
    store.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_second_one_does_not_overwrite_the_first(filled: Path) -> None:
    for content in ("a", "b", "c"):
        (filled / MARKER).write_text(content)
        disk_store(filled).close()
    kept = {path.name: (path / MARKER).read_text() for path in filled.glob("format-*")}
    assert kept == {"format-unknown": "a", "format-unknown-2": "b", "format-unknown-3": "c"}


def test_a_folder_of_somebody_else_with_that_name_is_left_alone(filled: Path) -> None:
    (filled / "format-99").mkdir()
    (filled / "format-99" / "notes.txt").write_text("mine")
    (filled / MARKER).write_text('{"format": 99}')
    disk_store(filled).close()
    assert [path.name for path in (filled / "format-99").iterdir()] == ["notes.txt"]
    assert segments(filled / "format-99-2")


def test_a_store_that_a_server_of_another_version_uses_is_refused(filled: Path) -> None:
    store = disk_store(filled)
    (filled / MARKER).write_text('{"format": 99}')
    with pytest.raises(ConfigError, match=f"no other server uses, and process {os.getpid()} does"):
        disk_store(filled)
    assert not list(filled.glob("format-*"))
    assert served(store, range(10)) == list(range(10))
    store.close()


def test_what_was_set_aside_can_be_removed_while_the_server_runs(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (filled / MARKER).write_text("nonsense")
    store = disk_store(filled)
    store.put(items(range(5)))
    code, out, _ = run(capsys, "tier", "clear", "--yes", filled / "format-unknown")
    assert (code, out.split()[0]) == (0, "10")
    assert not list((filled / "format-unknown").iterdir())
    assert served(store, range(5)) == list(range(5))
    store.close()


def test_it_goes_when_its_room_is_needed_and_its_room_counts_as_left(
    filled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (filled / MARKER).write_text('{"format": 99}')
    disk_store(filled).close()
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
    room = set_aside.room(filled)
    assert room == used_bytes(filled) + used_bytes(filled / "format-99")
    set_aside.drop_if_room_is_needed(filled, room)
    assert not list(filled.glob("format-*"))
    assert "its room is needed" in caplog.text


def test_it_stays_while_there_is_room_for_both(filled: Path) -> None:
    (filled / MARKER).write_text('{"format": 99}')
    for _ in range(3):
        disk_store(filled).close()
    assert segments(filled / "format-99")
