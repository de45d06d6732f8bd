"""`kvtide tier`: results on stdout, one line for an error, and exit codes that can be relied on."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from kvtide import cli
from kvtide.errors import ConfigError
from kvtide.progress import progress
from kvtide.tiers import cli as tier_cli
from kvtide.tiers.disk import admin, place
from kvtide.tiers.disk.aligned import PAGE
from kvtide.tiers.disk.backend import DiskBackend
from kvtide.tiers.disk.lock import FolderLock
from kvtide.tiers.disk.shared_folder import SharedFolder
from kvtide.tiers.disk.store_folder import forget, used_bytes
from kvtide.tiers.record import FORMAT_VERSION
from kvtide.units import size_text
from tests.command_line import check_refused, run
from tests.tiers.disk.test_backend import fill, served
from tests.tiers.disk.test_faults import flip, forbid, places, segments
from tests.tiers.support import NAMESPACE, disk_store

YES: dict[str, tuple[str, ...]] = {"inspect": (), "verify": (), "clear": ("--yes",)}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    return fill(tmp_path)


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "tier", "--help")
    assert code == 0
    assert "kvtide tier verify /var/cache/kvtide" in out


@pytest.fixture
def of_node(tmp_path: Path) -> Path:
    """The folder of a node that has had two models."""
    for number in range(2):
        (store := tmp_path / f"namespace-{number:016x}").mkdir()
        fill(store)
    return tmp_path


def test_the_folder_of_a_node_is_inspected_with_all_its_stores(
    capsys: pytest.CaptureFixture[str], of_node: Path
) -> None:
    code, out, err = run(capsys, "tier", "inspect", of_node)
    assert (code, err) == (0, "")
    assert out.startswith(f"type: disk\nplace: {of_node}\nrecords: 20\nbytes: 160 KiB\n\n")
    for store in of_node.iterdir():
        assert f"\nplace: {store}\n" in out
    assert out.count("type: disk") == 1
    shown = json.loads(run(capsys, "tier", "inspect", "--json", of_node)[1])
    assert [(store["records"], store["format"]) for store in shown["stores"]] == [(10, FORMAT_VERSION)] * 2


def test_the_folder_of_a_node_is_verified_with_all_its_stores(
    capsys: pytest.CaptureFixture[str], of_node: Path
) -> None:
    assert run(capsys, "tier", "verify", of_node) == (0, "20 records, 160 KiB: 0 do not verify\n", "")
    path = segments(of_node / "namespace-0000000000000001")[0]
    flip(path, places(path)[0] + 5)
    code, out, _ = run(capsys, "tier", "verify", of_node)
    assert (code, "1 do not verify\n  " in out, str(path) in out) == (1, True, True)


def test_the_folder_of_a_node_is_cleared_of_all_its_stores_and_nothing_else(
    capsys: pytest.CaptureFixture[str], of_node: Path
) -> None:
    (of_node / "holiday.jpg").touch()
    dry = run(capsys, "tier", "clear", "--dry-run", of_node)
    assert dry == (0, f"20 records, 160 KiB would be removed from {of_node}\n", "")
    assert run(capsys, "tier", "clear", "--yes", of_node) == (0, f"20 records removed from {of_node}\n", "")
    assert sorted(path.name for path in of_node.iterdir()) == ["holiday.jpg"]


def test_no_node_begins_to_use_a_folder_while_it_is_cleared(of_node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What says that there is a store, and the lock, would be removed from under it."""

    def late(root: Path) -> None:
        with pytest.raises(ConfigError, match=f"process {os.getpid()} does"):
            SharedFolder("tiers[0].path", of_node, 64 << 20)
        forget(root)

    monkeypatch.setattr(admin, "forget", late)
    admin.clear(str(of_node), {}, lambda *_: None)
    node = SharedFolder("tiers[0].path", of_node, 64 << 20)
    with pytest.raises(ConfigError):
        SharedFolder("tiers[0].path", of_node, 64 << 20)
    node.close()


def test_a_rank_that_moves_in_before_the_folder_is_locked_is_not_overlooked(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder would be emptied while it writes to it."""
    store: list[DiskBackend] = []

    def early(folder: Path) -> FolderLock:
        if not store:
            store.append(disk_store(folder, namespace=replace(NAMESPACE, rank=1, world=2)))
        return FolderLock(folder)

    monkeypatch.setattr(place, "FolderLock", early)
    with pytest.raises(ConfigError, match=f"process {os.getpid()} does"):
        admin.clear(str(filled), {}, lambda *_: None)
    assert (filled / "rank-1-of-2").is_dir()
    store[0].close()


def test_stores_that_this_version_does_not_read_are_said_and_cleared(
    capsys: pytest.CaptureFixture[str], of_node: Path
) -> None:
    """An old one that no engine has used since, and one that was set aside."""
    old, used = (of_node / f"namespace-{number:016x}" for number in range(2))
    for store in (old, used):
        (store / "kvtide-store.json").write_text('{"format": 99}')
    disk_store(used).close()
    aside = used / "format-99"
    code, out, _ = run(capsys, "tier", "inspect", of_node)
    assert (code, out.count(" of format 99, which this version does not read\n")) == (0, 2)
    shown = json.loads(run(capsys, "tier", "inspect", "--json", of_node)[1])
    assert {other["place"] for other in shown["other_formats"]} == {str(old), str(aside)}
    code, out, _ = run(capsys, "tier", "verify", of_node)
    assert (code, out.count("has another format, and was not read")) == (0, 2)
    size = size_text(used_bytes(old) + used_bytes(aside))
    dry = run(capsys, "tier", "clear", "--dry-run", of_node)
    others = json.loads(run(capsys, "tier", "clear", "--dry-run", "--json", of_node)[1])["other_formats"]
    assert others == shown["other_formats"]
    assert dry == (0, f"0 records, 0 bytes and {size} of other formats would be removed from {of_node}\n", "")
    assert run(capsys, "tier", "clear", "--yes", of_node) == (0, f"20 records removed from {of_node}\n", "")
    assert not list(of_node.iterdir())


def test_the_folder_of_a_node_that_runs_is_left_alone_also_where_a_store_is_not_in_use(
    capsys: pytest.CaptureFixture[str], of_node: Path
) -> None:
    node = SharedFolder("tiers[0].path", of_node, 64 << 20)
    for command in ("verify", "clear"):
        code, out, err = run(capsys, "tier", command, *YES[command], of_node)
        assert (code, out) == (2, "")
        assert f"process {os.getpid()} does: stop it" in err
    assert "records: 20\n" in run(capsys, "tier", "inspect", of_node)[1]
    node.close()


def test_one_store_of_a_node_can_be_cleared_by_itself(capsys: pytest.CaptureFixture[str], of_node: Path) -> None:
    one = of_node / "namespace-0000000000000001"
    assert run(capsys, "tier", "clear", "--yes", one)[0] == 0
    assert "records: 10\n" in run(capsys, "tier", "inspect", of_node)[1]


def test_inspect_says_what_is_there_and_who_made_it(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    code, out, err = run(capsys, "tier", "inspect", filled)
    assert (code, err) == (0, "")
    assert "records: 10\n" in out
    assert re.search(r"^rank 0 of 1: \d+ segments?, [\d.]+ [KM]iB, in use by nobody$", out, re.MULTILINE)
    assert "\nnamespace\n  attention: " in out
    assert "  dtype: float32\n" in out
    assert out.count("format: ") == out.count("10 records") + out.count("records: 10") == 1, "nothing is said twice"
    code, out, _ = run(capsys, "tier", "inspect", "--json", filled)
    shown = json.loads(out)
    assert (shown["records"], shown["bytes"]) == (10, 10 * 8192)
    assert shown["namespaces"][0]["manifest"]["model"] == "tiny"


def test_ranks_of_one_model_are_one_namespace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Several:
        URL_SCHEMES = ("valkey://",)

        def inspect(self, *_: object) -> dict[str, object]:
            makers = [{"model": "a", "rank": rank, "world": 2} for rank in range(2)]
            makers.append({"model": "b", "rank": 0, "world": 1})
            makers.append({"model": "b", "world": 1})  # damaged, or not ours
            found = [{"manifest": maker, "records": 3, "bytes": 2048} for maker in makers]
            return {
                "records": 10,
                "bytes": 7168,
                "cleared": {"records": 1, "bytes": 4096},
                "namespaces": [*found, {"manifest": None, "records": 1, "bytes": 1024}],
            }

    monkeypatch.setattr(tier_cli, "kind_of", lambda *_: Several())
    _, out, _ = run(capsys, "tier", "inspect", "valkey://cache")
    assert out.splitlines() == [
        "records: 10",
        "bytes: 7 KiB",
        "cleared: 1 record, 4 KiB",
        "namespace: 6 records, 4 KiB",
        "  model: a",
        "  rank: 0, 1",
        "  world: 2",
        "namespace: 3 records, 2 KiB",
        "  model: b",
        "  rank: 0",
        "  world: 1",
        "namespace: 3 records, 2 KiB",
        "  model: b",
        "  world: 1",
        "namespace: 1 record, 1 KiB",
    ]


def test_a_store_that_cannot_list_its_records_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unlisted:
        URL_SCHEMES = ("mooncake://",)

        def inspect(self, *_: object) -> dict[str, object]:
            return {"records": None, "bytes": None, "namespaces": []}

    monkeypatch.setattr(tier_cli, "kind_of", lambda *_: Unlisted())
    assert run(capsys, "tier", "inspect", "mooncake://master") == (0, "records: not known\nbytes: not known\n", "")


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
    code, out, _ = run(capsys, "tier", "clear", "--yes", filled)
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
    assert run(capsys, "tier", "clear", "--yes", filled)[0] == 0
    disk_store(filled).close()


def test_a_store_in_use_can_be_inspected_and_nothing_more(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    store = disk_store(filled)
    code, out, _ = run(capsys, "tier", "inspect", filled)
    assert code == 0
    assert f"in use by process {os.getpid()}" in out
    for command in ("verify", "clear"):
        code, out, err = run(capsys, "tier", command, *YES[command], filled)
        assert (code, out) == (2, "")
        assert f"process {os.getpid()} does: stop it" in err
    assert served(store, range(10)) == list(range(10))
    store.close()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("tier inspect /no/such/place", "PLACE='/no/such/place': expected a folder that exists"),
        (
            "tier inspect cache.example:6379",
            "PLACE='cache.example:6379': expected a folder that exists, or a URL, such as valkey://HOST:6379",
        ),
        ("tier clear --yes /etc", "PLACE='/etc': expected the folder of a disk tier"),
        ("tier inspect gopher://cache", "PLACE='gopher://…': expected a folder, or a URL that begins with one of"),
        ("tier inspect null://x", "PLACE='null://…': expected a folder, or a URL that begins with one of"),
        ("tier verify null://x", "PLACE='null://…': expected a folder, or a URL that begins with one of"),
        ("tier clear --yes null://x", "PLACE='null://…': expected a folder, or a URL that begins with one of"),
        ("tier inspect disk:///tmp", "PLACE='disk://…': expected a folder, or a URL that begins with one of"),
        ("tier verify ~nosuchuser/x", "PLACE='~nosuchuser/x': expected a path from the root: ~nosuchuser is no user's"),
        (
            f"tier clear --yes /{'a' * 300}",
            f"PLACE='/{'a' * 300}': expected a folder that can be used (File name too long)",
        ),
        ("tier inspect /tmp --option password", "--option='password': expected a name and a value"),
        ("tier inspect /tmp --option password_file=x", "--option='password_file': expected none"),
        (
            "tier inspect valkey://127.0.0.1:1 --option pasword_file=x",
            "--option='pasword_file': expected one of username",
        ),
        ("tier paint /tmp", "no such command: 'paint'; known are clear, inspect, verify"),
        (
            "tier",
            "a command is missing, one of clear, inspect, verify, for example: kvtide tier inspect /var/cache/kvtide",
        ),
        (
            "tier verify",
            "PLACE is missing, for example: kvtide tier verify /var/cache/kvtide (see kvtide tier verify --h",
        ),
    ],
)
def test_what_cannot_be_done_costs_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: str, message: str
) -> None:
    check_refused(capsys, argv, message)


@pytest.mark.parametrize("command", ["inspect", "verify", "clear"])
@pytest.mark.parametrize(
    "place",
    [
        "valkey://kv:hunter2@127.0.0.1:1",
        "valkey://kv:hunter2/x@127.0.0.1:1",
        "valkey:/kv:hunter2@127.0.0.1:1",
        "gopher://kv:hunter2@127.0.0.1:1",
        "unix:///no/such/socket?password=hunter2",
        "mooncake://kv:hunter2@127.0.0.1:1",
    ],
)
def test_passwords_are_in_no_error(capsys: pytest.CaptureFixture[str], command: str, place: str) -> None:
    code, out, err = run(capsys, "tier", command, *YES[command], place)
    assert (code, out) == (2, "")
    assert "hunter2" not in err


def test_a_url_in_the_wrong_place_is_shown_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "tier", "inspect", "valkey://cache", "--option", "valkey://:hunter2@cache")
    assert code == 2
    assert "--option='valkey://:***@cache'" in err


def test_what_clear_says_has_no_password_in_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Emptied:
        URL_SCHEMES = ("valkey://",)

        def clear(self, *_: object) -> int:
            return 7

    monkeypatch.setattr(tier_cli, "kind_of", lambda *_: Emptied())
    code, out, err = run(capsys, "tier", "clear", "--yes", "valkey://kv:hunter2@cache:6379")
    assert (code, out, err) == (0, "7 records removed from valkey://kv:***@cache:6379\n", "")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *product(("inspect", "verify", "clear"), ("kvtide-store.json", "rank-0-of-1")),
        *product(("verify", "clear"), ("lock", "rank-0-of-1/lock")),  # inspect takes no lock
    ],
)
def test_a_store_of_another_user_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, filled: Path, command: str, name: str
) -> None:
    with monkeypatch.context() as patch:
        forbid(patch, filled / name)
        code, out, err = run(capsys, "tier", command, *YES[command], filled)
    assert (code, out) == (2, "")
    assert err.startswith(f"kvtide: error: PLACE='{filled}': expected a folder that this user may read and write (")
    assert f"{filled / name}: Permission denied): run this as the user who owns" in err
    assert "format" not in err
    assert run(capsys, "tier", "verify", filled)[0] == 0


def test_a_lock_that_cannot_be_taken_is_said_in_one_line(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    (filled / "lock").unlink()
    (filled / "lock").mkdir()
    for command in ("verify", "clear"):
        code, out, err = run(capsys, "tier", command, *YES[command], filled)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"{filled / 'lock'}: Is a directory" in err


def test_a_segment_that_cannot_be_read_is_named_and_the_others_are_looked_at(
    capsys: pytest.CaptureFixture[str], filled: Path
) -> None:
    link = filled / "rank-0-of-1" / "segment-00000098"
    link.symlink_to("/no/such/file")
    code, out, _ = run(capsys, "tier", "verify", filled)
    assert code == 1
    assert out == f"10 records, 80 KiB: 1 do not verify\n  {link} cannot be read: No such file or directory\n"
    code, out, _ = run(capsys, "tier", "inspect", filled)
    assert code == 0
    assert "records: 10\n" in out
    assert "segments that cannot be read: 1\n" in out
    code, out, _ = run(capsys, "tier", "clear", "--yes", filled)
    assert (code, out) == (0, f"10 records removed from {filled}\n")
    assert list(filled.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_segment_that_cannot_be_opened_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, filled: Path, number: int
) -> None:
    (path,) = segments(filled)
    forbid(monkeypatch, path, number)
    code, out, _ = run(capsys, "tier", "verify", filled)
    assert (code, out) == (1, f"0 records, 0 bytes: 1 do not verify\n  {path} cannot be read: {os.strerror(number)}\n")
    code, out, _ = run(capsys, "tier", "inspect", filled)
    assert code == 0
    assert "segments that cannot be read: 1\n" in out


def test_a_bad_sector_costs_verify_one_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, filled: Path
) -> None:
    (path,) = segments(filled)
    bad, original = places(path)[3], os.preadv

    def preadv(file: int, buffers: list[memoryview], offset: int) -> int:
        if offset // PAGE == bad // PAGE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    code, out, _ = run(capsys, "tier", "verify", filled)
    assert code == 1
    assert out.startswith("10 records, 80 KiB: 1 do not verify\n")
    assert f"in {path}, record 3" in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(3 << 20, None, "3 MiB"), (1 << 20, 4 << 20, "25%"), (0, None, "0 bytes"), (0, 0, "0 bytes")],
)
def test_progress_on_a_terminal_is_a_count_where_nobody_knows_how_much_there_is(
    monkeypatch: pytest.MonkeyPatch, done: int, total: int | None, shown: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress(size_text) as advance:
        advance("verifying", done, total)
    assert shown in terminal.getvalue()
    assert ("%" in terminal.getvalue()) == ("%" in shown)


@pytest.mark.parametrize(
    "words",
    [
        ["tier", "clear", "valkey://a", "valkey://:hunter2@b"],
        ["tier", "valkey://:hunter2@b"],
        ["tier", "inspect", "valkey://a", "--url=valkey://u:hunter2@b"],
    ],
)
def test_what_the_command_line_does_not_understand_is_shown_without_passwords(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(cli.main(words))
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err
    assert ":***@b" in said.err or "No such option '--url'" in said.err


# ---------------------------------------------------------------------- asking before anything is removed


def test_a_dry_run_counts_and_removes_nothing(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    assert run(capsys, "tier", "clear", "--dry-run", filled) == (
        0,
        f"10 records, 80 KiB would be removed from {filled}\n",
        "",
    )
    assert run(capsys, "tier", "clear", "--dry-run", "--json", filled)[1] == (
        '{"records": 10, "bytes": 81920, "other_formats": []}\n'
    )
    assert "records: 10\n" in run(capsys, "tier", "inspect", filled)[1]


def test_without_a_terminal_nothing_is_removed_unless_yes(capsys: pytest.CaptureFixture[str], filled: Path) -> None:
    code, out, err = run(capsys, "tier", "clear", filled)
    assert (code, out) == (2, "")
    what = f"remove 10 records, 80 KiB from {filled}"
    assert err == f"kvtide: error: not a terminal: add --yes to {what} (see kvtide tier clear --help)\n"
    assert "records: 10\n" in run(capsys, "tier", "inspect", filled)[1]


def test_clear_looks_before_it_asks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for folder, why in ((tmp_path, "the folder of a disk tier"), (tmp_path / "none", "a folder that exists")):
        code, out, err = run(capsys, "tier", "clear", folder)
        assert (code, out) == (2, "")
        assert err.startswith(f"kvtide: error: PLACE='{folder}': expected {why}")


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_on_a_terminal_clear_asks(filled: Path, answer: str, code: int) -> None:
    assert on_a_terminal(filled, answer, code).startswith(f"Remove 10 records, 80 KiB from {filled}? [y/N]")
    assert bool(segments(filled)) == (answer != "y")


def on_a_terminal(folder: Path, answer: str, code: int) -> str:
    """Clear a folder as somebody who answers; return what that person reads."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kvtide", "tier", "clear", str(folder)]
    with subprocess.Popen(  # noqa: S603 (our own)
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        os.write(ours, f"{answer}\n".encode())
        _, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code
    return err


def test_clear_asks_about_a_store_of_another_format_and_not_about_a_folder_that_is_none(filled: Path) -> None:
    (filled / "kvtide-store.json").write_text('{"format": 99}')
    assert on_a_terminal(filled, "n", 1).startswith(f"Remove everything of kvtide's from {filled}? [y/N]")
    (filled / "kvtide-store.json").unlink()
    assert on_a_terminal(filled, "y", 2).startswith(f"kvtide: error: PLACE='{filled}': expected the folder of a disk")
