"""Engines, nodes and sockets of other users of the machine, in processes that have really become such a user (I15)."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtide.node.ask import status_of
from tests.node.support import SOON_S, python, wait_until
from tests.node.test_bad_input import Engine, said
from tests.node.test_node import node
from tests.not_tested import lacks

STRANGER = 54321
BECOME = """
import os, sys
def become_stranger():
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
"""
ENGINE = f"""{BECOME}
import time
from pathlib import Path
from kvtide.node.hello import Hello, Role
from kvtide.node.link import Link
lines = []
hello = Hello(Role.SCHEDULER, engine="stranger", namespace={{"model": "tiny", "parts": [1000], "groups": []}})
link = Link(Path(sys.argv[2]), hello, lines.append)
become_stranger()
while not lines:
    link.poll(time.monotonic())
    time.sleep(0.01)
print(lines[0])
"""
NODE = f"""{BECOME}
from kvtide.cli import main
import kvtide.node.cli
become_stranger()
sys.exit(main(["node", "--memory", "1MiB", "--socket", sys.argv[2]]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder where everybody can write."""
    if os.geteuid() != 0:
        lacks("other users", "Only root can become one.")
    with tempfile.TemporaryDirectory(prefix="kvtide-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0o600, f"is not for user {STRANGER}: run as the user of the node, or start it with a --group of both"),
        (
            0o666,
            f"this node is for user 0, and this is user {STRANGER}: run as user 0, or start the node with a --group",
        ),
    ],
    ids=["the file system refuses", "the node refuses"],
)
def test_an_engine_of_another_user_is_refused(folder: Path, mode: int, why: str) -> None:
    with node(folder / "node.sock") as ours:
        ours.path.chmod(mode)
        line, _ = python(ENGINE, STRANGER, ours.path).communicate(timeout=SOON_S)
        assert line.startswith(f"serving without the node at {ours.path}: ")
        assert why in line
        assert status_of(ours.path)["engines"] == []
        if mode == 0o666:
            said(ours, f"this is user {STRANGER}")


def test_an_engine_refuses_the_node_of_another_user(folder: Path) -> None:
    path = folder / "node.sock"
    with python(NODE, STRANGER, path) as theirs:
        try:
            wait_until(path.exists)
            assert f"is of user {STRANGER}, and this is user 0: start a node of your own" in Engine(path).line()
        finally:
            theirs.kill()


def test_a_node_leaves_the_socket_of_another_user_alone(folder: Path) -> None:
    path = folder / "node.sock"
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(path))
        theirs = python(NODE, STRANGER, path, stderr=subprocess.PIPE)
        _, message = theirs.communicate(timeout=SOON_S)
    assert theirs.returncode != 0
    assert f"--socket='{path}': expected a path of your own; user 0 has a socket there" in message
    assert path.exists()
