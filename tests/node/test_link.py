"""Without its node an engine serves as if it had none, and comes back to it by itself (I13)."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from kvtide.node.client import Client
from kvtide.node.credentials import Access
from kvtide.node.errors import Gone, NoNode
from kvtide.node.frames import Frame
from kvtide.node.hello import Hello, Role
from kvtide.node.link import HELLO_S, RETRY_REFUSED_S, RETRY_S, Link
from kvtide.node.peers import Limits
from tests.left_behind import Before
from tests.node.support import ECHO, SOON_S, Rig, serving, wait_until

HELLO = Hello(Role.SCHEDULER, engine="engine", namespace={"parts": [1000]})


class Linked:
    """A link, the lines that it says, and a clock that stands still."""

    def __init__(self, folder: Path, hello: Hello = HELLO) -> None:
        self.lines: list[str] = []
        self.now_s = 100.0
        self.warnings: list[str] = []
        self.link = Link(folder / "node.sock", hello, self.lines.append, self._warn)

    def _warn(self, line: str) -> None:
        self.warnings.append(line)
        self.lines.append(line)

    def poll(self, seconds: float = 0.0) -> list[Frame]:
        self.now_s += seconds
        return self.link.poll(self.now_s)

    def is_attached(self) -> bool:
        return self.link.client is not None

    def is_greeting(self) -> bool:
        return self.link._greeting is not None

    def attach(self) -> None:
        wait_until(lambda: self.poll() or self.is_attached())

    def ask(self) -> Frame | None:
        assert self.link.client is not None
        return self.link.client.ask(ECHO, timeout_s=SOON_S)


def test_a_node_that_is_not_there_is_said_once_and_tried_again(tmp_path: Path) -> None:
    linked = Linked(tmp_path)
    for _ in range(3):
        assert linked.poll(RETRY_S) == []
    (line,) = linked.lines
    assert line.startswith(f"serving without the node at {tmp_path}/node.sock: no node listens at ")
    with serving(tmp_path):
        assert linked.poll() == []
        assert not linked.is_greeting(), "not before it is time"
        linked.poll(RETRY_S)
        linked.attach()
        assert linked.lines[1:] == [f"attached to the node at {tmp_path}/node.sock (this-epoch)"]
        linked.link.close()
        assert linked.poll(1e6) == []
        assert not linked.is_attached(), "it was let go for good"


def test_a_node_that_takes_no_connections_any_more_is_not_said_to_be_no_node(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as hangs, socket.socket(socket.AF_UNIX) as first:
        hangs.bind(str(path))
        hangs.listen(0)
        first.connect(str(path))
        with pytest.raises(NoNode, match=f"too many wait for the node at {path} to take their connections"):
            Client(path, HELLO)


def test_an_engine_without_descriptors_serves_without_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    linked = Linked(tmp_path)
    with serving(tmp_path):
        with monkeypatch.context() as patched:
            patched.setattr("kvtide.node.client.socket.socket", none_left)
            assert linked.poll() == []
        assert "Too many open files" in linked.lines[-1]
        linked.poll(RETRY_S)
        linked.attach()
        linked.link.close()


def test_a_node_that_goes_is_noticed_and_one_that_comes_back_is_found(tmp_path: Path) -> None:
    before = Before()
    linked = Linked(tmp_path)
    for _ in range(2):
        rig = Rig(tmp_path / "node.sock", Limits(connections=10), None, grace_s=30.0)
        linked.poll(RETRY_S)
        linked.attach()
        assert linked.ask() is not None
        rig.close()
        assert linked.poll() == []
        assert not linked.is_attached()
        assert linked.lines[-1].endswith("the connection was closed")
    assert len(linked.lines) == 4
    assert linked.warnings == linked.lines[1::2], "that it is attached is no warning"
    before.check()


def test_what_somebody_finds_out_while_asking_counts(tmp_path: Path) -> None:
    linked = Linked(tmp_path)
    with serving(tmp_path) as rig:
        linked.poll()
        linked.attach()
        client = linked.link.client
        assert client is not None
        client._connection.socket.close()
        with pytest.raises(Gone) as gone:
            linked.ask()
        linked.link.lost(gone.value, linked.now_s)
        assert not linked.is_attached()
        linked.poll(RETRY_S)
        linked.attach()
        wait_until(lambda: rig.call(lambda: rig.server.connections) == 1)
        linked.link.close()


def test_frames_that_come_unasked_are_handed_on(tmp_path: Path) -> None:
    linked = Linked(tmp_path)
    with serving(tmp_path) as rig:
        linked.poll()
        linked.attach()
        (owner,) = rig.call(lambda: list(rig.server.lives.owners))
        rig.call(lambda: rig.server.send(owner, Frame(77, b"news")))
        assert linked.poll() == [Frame(77, b"news")]
        linked.link.close()


def test_a_node_that_is_being_stopped_is_left(tmp_path: Path) -> None:
    linked = Linked(tmp_path)
    with serving(tmp_path) as rig:
        linked.poll()
        linked.attach()
        rig.call(rig.server.stop)
        assert linked.poll() == []
        assert not linked.is_attached()
        assert linked.lines[-1].endswith(": it is being stopped")
        wait_until(lambda: rig.call(lambda: rig.server.connections) == 0)


def test_a_node_that_was_stopped_while_nobody_asked_it_anything_is_said_to_have_been_stopped(tmp_path: Path) -> None:
    linked = Linked(tmp_path)
    with serving(tmp_path) as rig:
        linked.poll()
        linked.attach()
        rig.call(rig.server.stop)
        rig.call(rig.server.close)
        with pytest.raises(Gone, match="it was stopped"):
            linked.ask()
        linked.link.close()


def test_a_refusal_for_good_is_said_and_tried_again_seldom(tmp_path: Path) -> None:
    linked = Linked(tmp_path)
    with serving(tmp_path, access=Access(uid=os.geteuid() + 1)) as rig:
        linked.poll()
        wait_until(lambda: linked.poll() or linked.lines)
        assert f"this node is for user {os.geteuid() + 1}" in linked.lines[0]
        linked.poll(RETRY_REFUSED_S - 1.0)
        assert not linked.is_greeting()
        linked.poll(1.0)
        assert linked.is_greeting()
        wait_until(lambda: linked.poll() or not linked.is_greeting())
        assert len(linked.lines) == 1
        wait_until(lambda: rig.server.refused == 2)


def test_a_node_that_does_not_answer_a_hello_is_not_waited_for(tmp_path: Path) -> None:
    linked = Linked(tmp_path)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "node.sock"))
        silent.listen()
        linked.poll()
        linked.poll(HELLO_S - 1.0)
        assert linked.lines == []
        linked.poll(1.0)
        assert linked.lines[0].endswith(f"it did not answer a hello within {HELLO_S:g} s")
    linked.link.close()
