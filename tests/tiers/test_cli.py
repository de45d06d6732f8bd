"""`kvtide tier`: results on stdout, one line for an error, and exit codes that can be relied on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvtide import cli
from tests.tiers.disk.test_faults import flip, places, segments
from tests.tiers.disk.test_store import items, served
from tests.tiers.support import disk_store


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    store = disk_store(tmp_path)
    store.put(items(range(10)))
    store.close()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[object, str, str]:
    try:
        code: object = cli.main([str(word) for word in argv])
    except SystemExit as leaving:
        code = leaving.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tier", "--help")
    assert code == 0
    assert "kvtide tier verify /var/cache/kvtide" in out


def test_inspect_says_what_is_there_and_who_made_it(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    code, out, err = run(capsys, "tier", "inspect", filled)
    assert (code, err) == (0, "")
    assert "records: 10\n" in out
    assert "rank 0 of 1: " in out
    assert "  dtype: float32\n" in out
    code, out, _ = run(capsys, "tier", "inspect", "--json", filled)
    shown = json.loads(out)
    assert (shown["records"], shown["bytes"]) == (10, 10 * 8192)
    assert shown["namespaces"][0]["manifest"]["model"] == "tiny"


def test_verify_finds_what_was_changed(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    code, out, err = run(capsys, "tier", "verify", filled)
    assert (code, out, err) == (0, "10 records, 80 KiB: 0 do not verify\n", "")
    path = segments(filled)[0]
    flip(path, places(path)[0] + 5)
    flip(path, 4096 + 128 + 70)
    code, out, _ = run(capsys, "tier", "verify", filled)
    assert code == 1
    assert "2 do not verify" in out
    assert str(path) in out
    code, out, _ = run(capsys, "tier", "verify", "--json", filled)
    assert (code, json.loads(out)["corrupt_records"]) == (1, 2)


def test_clear_removes_everything_of_kvtide_and_nothing_else(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    (filled / "holiday.jpg").touch()
    (filled / "rank-0-of-1" / "holiday.jpg").touch()
    code, out, _ = run(capsys, "tier", "clear", filled)
    assert (code, out) == (0, f"10 records removed from {filled}\n")
    assert sorted(path.name for path in filled.rglob("*")) == ["holiday.jpg", "holiday.jpg", "rank-0-of-1"]
    store = disk_store(filled)
    assert served(store, range(10)) == []
    store.close()


def test_clear_makes_room_for_another_format(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    (filled / "kvtide-store.json").write_text('{"format": 99}')
    code, _, err = run(capsys, "tier", "inspect", filled)
    assert code == 2
    assert "format 99" in err
    assert run(capsys, "tier", "clear", filled)[0] == 0
    disk_store(filled).close()


def test_a_store_in_use_can_be_inspected_and_nothing_more(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    store = disk_store(filled)
    code, out, _ = run(capsys, "tier", "inspect", filled)
    assert code == 0
    assert f"in use by process {os.getpid()}" in out
    for command in ("verify", "clear"):
        code, out, err = run(capsys, "tier", command, filled)
        assert (code, out) == (2, "")
        assert f"process {os.getpid()} does: stop it" in err
    assert served(store, range(10)) == list(range(10))
    store.close()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("tier inspect /no/such/place", "PLACE='/no/such/place': expected a folder that exists"),
        ("tier clear /etc", "PLACE='/etc': expected the folder of a disk tier"),
        ("tier inspect gopher://cache", "PLACE='gopher://…': expected a folder, or a URL that begins with one of"),
        ("tier inspect /tmp --option password", "--option='password': expected a name and a value"),
        ("tier inspect /tmp --option password_file=x", "--option='password_file': expected none"),
        (
            "tier inspect valkey://127.0.0.1:1 --option pasword_file=x",
            "--option='pasword_file': expected one of username",
        ),
        ("tier paint /tmp", "argument COMMAND: invalid choice: 'paint'"),
        ("tier", "the following arguments are required: COMMAND"),
    ],
)
def test_what_cannot_be_done_costs_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: str, message: str
) -> None:
    code, out, err = run(capsys, *argv.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"kvtide: error: {message}")
    assert err.count("\n") == 1
