"""The socket's file: one node at a time, narrow permissions, what a dead node left is replaced, nothing else is."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.node.errors import Gone
from kvtide.node.listening import Listening
from tests.left_behind import Before
from tests.node.support import python

LISTEN = """
import sys
from pathlib import Path
from kvtide.node.listening import Listening
listening = Listening(Path(sys.argv[1]))
print("listens", flush=True)
sys.stdin.read()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_own_user_can_connect_and_the_file_goes_with_the_node(tmp_path: Path) -> None:
    before = Before()
    path = tmp_path / "node.sock"
    listening = Listening(path)
    assert mode(path) == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        accepted = listening.accept()
        assert accepted is not None
        accepted.close()
    assert listening.accept() is None
    listening.close()
    listening.close()
    assert list(tmp_path.iterdir()) == []
    assert before.new_descriptors == []


def test_with_a_group_its_members_can_connect(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    listening = Listening(path, group=os.getegid())
    assert mode(path) == 0o660
    assert path.stat().st_gid == os.getegid()
    listening.close()


def test_a_group_that_cannot_be_given_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(ConfigError, match=r"group=77: expected a group that .* \(Operation not permitted\)"):
        Listening(tmp_path / "node.sock", group=77)
    assert list(tmp_path.iterdir()) == []


def test_the_mask_of_the_process_does_not_matter(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        listening = Listening(tmp_path / "node.sock")
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert mode(tmp_path / "node.sock") == 0o600
    listening.close()


def test_two_nodes_at_one_path_are_refused_by_the_process_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    other = python(LISTEN, path)
    assert other.stdout is not None
    assert other.stdout.readline() == "listens\n"
    with pytest.raises(
        ConfigError, match=rf"socket=.*node.sock.*: process {other.pid} is a node that listens there; stop it, or"
    ):
        Listening(path)
    other.kill()  # it cannot tidy up
    other.communicate()
    assert path.exists()
    Listening(path).close()
    assert list(tmp_path.iterdir()) == []


def start(path: Path, barrier: threading.Barrier, found: list[Listening]) -> None:
    barrier.wait(20)
    with contextlib.suppress(ConfigError):
        found.append(Listening(path))


def test_of_many_that_start_at_once_one_listens(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    for _ in range(20):
        found: list[Listening] = []
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=start, args=(path, barrier, found)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        (one,) = found
        one.close()
    assert list(tmp_path.iterdir()) == []


def test_another_program_that_listens_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match="another program listens there"):
            Listening(path)
        assert path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "node.sock"
    if kind == "file":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("elsewhere")
    with pytest.raises(ConfigError, match="expected a path where nothing is yet"):
        Listening(path)
    assert path.is_symlink() or path.exists()


def test_a_socket_of_somebody_else_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match=r"expected a path of your own; user \d+ has a socket there"):
        Listening(path)
    assert path.exists()


def test_a_path_in_no_folder_and_a_path_that_is_too_long_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a path in a folder that exists"):
        Listening(tmp_path / "missing" / "node.sock")
    with pytest.raises(ConfigError, match="a path of at most 107 bytes"):
        Listening(tmp_path / ("x" * 120))


def test_a_folder_in_which_nothing_can_be_made_is_refused() -> None:
    with pytest.raises(ConfigError, match="a place where this user can make files"):
        Listening(Path("/proc/node.sock"))


def test_a_socket_that_somebody_has_replaced_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    listening = Listening(path)
    path.unlink()
    path.touch()
    listening.close()
    assert path.exists()


def test_an_error_of_the_system_is_told_apart_from_nobody(tmp_path: Path) -> None:
    listening = Listening(tmp_path / "node.sock")
    listening.socket.close()
    with pytest.raises(Gone, match="nobody can connect at the moment"):
        listening.accept()
    listening.close()
