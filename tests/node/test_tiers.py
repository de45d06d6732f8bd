"""Tiers below a real node: real processes, a real folder, a real store, and bytes that are compared."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtide.core import NotLoaded
from kvtide.core.index import remote
from kvtide.core.requests import Request
from kvtide.tiers.disk.lock import FolderLock
from tests.command_line import run
from tests.node.real_engine import TOKENS, engine, keys
from tests.node.support import SOON_S, wait_until
from tests.node.test_node import NodeProcess, node
from tests.tiers.shared.servers import Server

BLOCKS = 20
SLOTS = (1 << 20) // 1500
"""Of a node with 1 MiB."""
DEADLINE_MS = 5000
"""For a machine that is busy with other things."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tier"
    path.mkdir()
    return path


def disk(folder: Path, **more: object) -> tuple[str, str]:
    tier = {"type": "disk", "path": str(folder), "size": "32MiB", "deadline_ms": DEADLINE_MS, **more}
    return "--tier", json.dumps(tier)


def has_line(running: NodeProcess, text: str) -> bool:
    return any(text in line for line in running.lines)


def put_blocks(status: object) -> int:
    assert isinstance(status, dict)
    return int(status["keys"].get("put hit", 0)) // 2


def test_a_node_that_was_killed_leaves_its_blocks_to_the_next_one(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "node.sock"
    with node(path, *disk(folder)) as running:
        assert f"below it disk {folder} (32 MiB)" in running.lines[0]
        with engine(path) as one:
            assert one.store("a", BLOCKS) == BLOCKS
            wait_until(lambda: put_blocks(one.tier()) == BLOCKS)
            assert one.tier()["state"] == "closed"
        running.end(signal.SIGKILL)
    with node(path, *disk(folder)), engine(path) as one:
        wait_until(lambda: one.tier()["state"] == "closed")
        assert one.load("b", BLOCKS) == 0
        assert one.load("a", BLOCKS) == BLOCKS
        assert one.tier()["keys"]["get hit"] == 2 * BLOCKS
        assert one.load("a", BLOCKS) == BLOCKS
        assert one.tier()["keys"]["get hit"] == 2 * BLOCKS, "it is in memory now"
        space = one.space()
        assert (space["waiting"], space["leased"], space["writing"]) == (0, 0, 0)


def test_what_a_disk_does_not_have_is_a_miss_in_the_same_step(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "node.sock"
    monkeypatch.setattr(remote, "LOOK_UP_S", SOON_S)
    with node(path, *disk(folder)), engine(path) as one:
        wait_until(lambda: one.tier()["state"] == "closed")
        request = Request("r", [keys("nobody has it", 1000)], [[]])
        match = one.index.look_up(request, 0, 1000 * TOKENS + 1, lambda _: True)
        assert (match.waits, match.missed) == (False, {NotLoaded.NOT_CACHED: 1000 * TOKENS})
        assert one.tier()["keys"] == {"lookup miss": 2000}
        assert one.space()["waiting"] == 0


def test_f9_what_an_operator_clears_is_gone_below_too_and_he_is_told(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.sock"
    clear = ("node", "clear", "--socket", path, "tiny")
    with node(path, *disk(folder)) as running:
        with engine(path) as one:
            assert one.store("a", BLOCKS) == BLOCKS
            wait_until(lambda: put_blocks(one.tier()) == BLOCKS)
            what = f"{BLOCKS} blocks of namespace {one.name} (tiny) and all that is below, in disk ({folder})"
            assert run(capsys, *clear, "--dry-run") == (0, f"{what} would be forgotten\n", "")
            assert run(capsys, *clear, "--yes") == (0, f"{BLOCKS} blocks forgotten\n", "")
            assert one.load("a", BLOCKS) == 0
        assert running.end(signal.SIGTERM) == 0
    with node(path, *disk(folder)), engine(path) as one:
        wait_until(lambda: one.tier()["state"] == "closed")
        assert one.load("a", BLOCKS) == 0


def test_what_left_the_memory_is_brought_up_for_whichever_engine(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "node.sock"
    with node(path, *disk(folder)), engine(path, "one") as one, engine(path, "two") as two:
        one.store("a", BLOCKS)
        wait_until(lambda: put_blocks(one.tier()) == BLOCKS)
        for number in range(3):
            one.store(f"other {number}", SLOTS // 2)
        wait_until(lambda: two.space()["waiting"] == 0)
        assert two.load("a", BLOCKS) == BLOCKS
        assert two.tier()["keys"]["get hit"] == 2 * BLOCKS
        assert one.load("a", BLOCKS) == BLOCKS


def test_what_is_kept_when_it_leaves_sinks_when_the_node_is_stopped(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "node.sock"
    with node(path, *disk(folder, write="evict")) as running:
        with engine(path) as one:
            wait_until(lambda: one.tier()["state"] == "closed")
            one.store("a", BLOCKS)
        assert running.end(signal.SIGTERM) == 0
        assert running.lines[-1].endswith("has stopped")
        assert not has_line(running, "lost")
    with node(path, *disk(folder)), engine(path) as one:
        wait_until(lambda: one.tier()["state"] == "closed")
        assert one.load("a", BLOCKS) == BLOCKS


def test_a_block_of_which_one_part_is_gone_is_a_miss(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "node.sock"
    with node(path, *disk(folder)) as running:
        with engine(path) as one:
            one.store("a", BLOCKS)
            wait_until(lambda: put_blocks(one.tier()) == BLOCKS)
        running.end(signal.SIGTERM)
    (second,) = folder.glob("namespace-*/rank-1-of-2")
    shutil.rmtree(second)
    with node(path, *disk(folder)), engine(path) as one:
        wait_until(lambda: one.tier()["state"] == "closed")
        assert one.load("a", BLOCKS) == 0


def test_two_namespaces_use_one_folder_and_do_not_meet(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "node.sock"
    for weights in ("1", "2"):
        check_cold_and_then_warm(path, folder, weights)


def check_cold_and_then_warm(path: Path, folder: Path, weights: str) -> None:
    with node(path, *disk(folder)), engine(path, weights=weights) as one:
        wait_until(lambda: one.tier()["state"] == "closed")
        assert one.load("a", BLOCKS) == 0
        one.store("a", BLOCKS)
        wait_until(lambda: put_blocks(one.tier()) == BLOCKS)
        assert one.load("a", BLOCKS) == BLOCKS


def test_an_engine_whose_weights_have_changed_keeps_nothing_below(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "node.sock"
    with node(path, *disk(folder)), engine(path, private="4711") as one:
        one.store("a", BLOCKS)
        assert one.load("a", BLOCKS) == BLOCKS
        assert one.space()["tiers"] == []
    assert list(folder.glob("namespace-*")) == []


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_a_store_that_others_share_is_below_a_node_and_its_end_is_a_line(tmp_path: Path, server: Server) -> None:
    path = tmp_path / "node.sock"
    tier = {"type": "valkey", "url": server.url, "deadline_ms": DEADLINE_MS}
    with node(path, "--tier", json.dumps(tier)) as running, engine(path) as one:
        one.store("a", BLOCKS)
        wait_until(lambda: put_blocks(one.tier("valkey")) == BLOCKS)
        running.end(signal.SIGKILL)
        with node(path, "--tier", json.dumps(tier)) as next_one, engine(path, "two") as two:
            assert two.load("a", BLOCKS) == BLOCKS
            server.kill()
            two.store("b", BLOCKS)
            wait_until(lambda: two.load("c", BLOCKS) or two.tier("valkey")["state"] == "open")
            wait_until(lambda: has_line(next_one, "it is tried again now and then"))
            assert two.load("b", BLOCKS) == BLOCKS
            _, match = two.look_up("d", BLOCKS)
            assert match.missed.keys() <= {NotLoaded.NOT_CACHED, NotLoaded.TIER_LATE}


def test_what_cannot_be_used_is_refused_before_the_node_is_there(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.sock"
    command = ("node", "--memory", "1MiB", "--socket", str(path))
    (tmp_path / "file").touch()

    def refused(tier: str, *expected: str) -> None:
        code, out, err = run(capsys, *command, "--tier", tier)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert [text for text in expected if text not in err] == [], err
        assert "secret" not in err
        assert not path.exists()

    refused("type=disk", "--tier[0].path")
    refused(f"type=disk,path={folder},size=1MiB,colour=red", "--tier[0].colour")
    refused(f"type=disk,path={tmp_path}/nowhere,size=1MiB", "--tier[0].path", "mkdir -p")
    refused(f"type=disk,path={tmp_path}/file,size=1MiB", "--tier[0].path", "this is a file")
    refused("disk", "names and values, such as type=disk")
    refused('{"type": ', "JSON, and this is not")
    refused("password=secret,secret", "names and values")
    with FolderLock(folder):
        refused(f"type=disk,path={folder},size=1MiB", "--tier[0].path", "a folder that no other server uses")
    (folder / "rank-0-of-1").mkdir()
    with FolderLock(folder / "rank-0-of-1"):
        refused(f"type=disk,path={folder},size=1MiB", "--tier[0].path", "a folder that no other server uses")
    (folder / "kvtide-store.json").write_text('{"format": 3}')
    refused(f"type=disk,path={folder},size=1MiB", "a folder without blocks of an engine", "kvtide tier clear")
