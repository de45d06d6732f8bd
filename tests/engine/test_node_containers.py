"""A node and engines as in containers of one pod: each has its own namespace of users, processes, IPC and mounts.

They share what the containers of docs/users/node.md share: a folder, with the socket in it, and a user.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.test_node import alone, prompt
from tests.node.real_node import EngineProcess, RealNode
from tests.node.support import wait_until
from tests.not_tested import lacks

CONTAINER = ("unshare", "--map-root-user", "--pid", "--ipc", "--mount", "--mount-proc", "--fork", "--kill-child")
SO_PEERPIDFD = 77


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealNode]:
    """A node in a container."""
    if shutil.which("unshare") is None or subprocess.run([*CONTAINER, "true"], check=False).returncode:  # noqa: S603 (our own)
        lacks("containers of a pod", "They need namespaces of their own, which this system lets nobody make.")
    with RealNode(tmp_path / "node.sock", before=CONTAINER) as node:
        yield node


def engine_in_container(node: RealNode) -> EngineProcess:
    return EngineProcess(node.path, before=CONTAINER)


def processes(node: RealNode) -> list[tuple[int, bool]]:
    """Return the numbers of engines' processes, as the node sees them, and whether it watches them."""
    shown = [process for engine in node.status()["engines"] for process in engine["processes"]]
    return [(process["pid"], process["watched"]) for process in shown]


def test_an_engine_in_another_container_finds_what_one_has_stored_that_was_killed(node: RealNode) -> None:
    tokens = prompt(300)
    with engine_in_container(node) as first:
        assert first.ask(tokens, 4).tokens == alone(tokens)
        assert {pid for pid, _ in processes(node)} == {0}, "out of sight"
        first.kill()
    with engine_in_container(node) as second:
        again = second.ask(tokens, 4)
    assert again.tokens == alone(tokens)
    assert again.loaded_tokens == len(tokens) - 8


def test_an_engine_in_another_container_that_was_killed_is_known_to_have_exited(node: RealNode) -> None:
    """Its slots are free before the time is up that is for processes which cannot be watched."""
    if not can_watch_other_containers():
        lacks("the exit of an engine in another container", "It needs Linux 6.5 or newer.")
    with engine_in_container(node) as engine:
        engine.ask(prompt(301), 4)
        assert [is_watched for _, is_watched in processes(node)] == [True, True], "scheduler and worker"
        engine.begin(prompt(302), 64)
        engine.kill()
    wait_until(lambda: node.status()["engines"] == [])
    node.check_at_rest()


def can_watch_other_containers() -> bool:
    """Whether the kernel gives a descriptor of the process at the other end, where its number says nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError:
            return False
    return True
