"""What people and programs do wrong to a node: each costs a clear line, at the engine and at the node, and it lives.

One test for each entry of the list, named after it, with a real node. The small parts have tests of their own.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from kvtide.copy.memory_left import memory_left
from kvtide.core.eviction import POLICIES
from kvtide.core.index import calls
from kvtide.core.index.calls import Call, Offer
from kvtide.node import client as client_module
from kvtide.node.ask import status_of
from kvtide.node.client import Client
from kvtide.node.codec import call_frame
from kvtide.node.credentials import Credentials
from kvtide.node.errors import BadFrame, Refused
from kvtide.node.frames import FIRST_OF_INDEX, Frame, header
from kvtide.node.hello import Hello, Role
from kvtide.node.link import Link
from kvtide.node.owners import Owner
from kvtide.node.shown import described
from kvtide.node.spaces import Spaces
from tests.command_line import check_refused
from tests.node.support import SOON_S, wait_until
from tests.node.test_node import GROUPS, NAMESPACE, NodeProcess, attached, leave, node


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node(tmp_path_factory.mktemp("bad") / "node.sock") as process:
        yield process
        assert process.end(signal.SIGTERM) == 0


@pytest.fixture(autouse=True)
def _it_lives(running: NodeProcess) -> Iterator[None]:
    """Whatever was done to it, it serves."""
    yield
    leave(*attached(running.path, "alive"))
    wait_until(lambda: status_of(running.path)["engines"] == [])
    assert running.process.poll() is None


class Engine:
    """The scheduler of an engine, as far as its tie to a node goes."""

    def __init__(self, path: Path, name: str = "engine", **changed: object) -> None:
        namespace = {**NAMESPACE, **changed}
        self.lines: list[str] = []
        self.link = Link(path, Hello(Role.SCHEDULER, engine=name, namespace=namespace), self.lines.append)

    def line(self) -> str:
        """Return what it says first."""
        wait_until(lambda: self.link.poll(time.monotonic()) or self.lines)
        return self.lines[0]

    @property
    def is_attached(self) -> bool:
        return self.link.client is not None


def said(running: NodeProcess, text: str) -> None:
    wait_until(lambda: any(text in line for line in running.lines))


# ---------------------------------------------------------------------- the list


def test_no_such_socket(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "node.sock")
    assert engine.line() == (
        f"serving without the node at {tmp_path}/node.sock: no node listens at {tmp_path}/node.sock "
        "(No such file or directory)"
    )
    with node(tmp_path / "node.sock"):
        wait_until(lambda: engine.link.poll(time.monotonic() + 100.0) or engine.is_attached)
        assert "attached to the node at" in engine.lines[-1]
        engine.link.close()


def test_a_socket_of_somebody_else(
    running: NodeProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stranger = Credentials(1, os.geteuid() + 1, frozenset())
    monkeypatch.setattr(client_module, "credentials_of", lambda _: stranger)
    line = Engine(running.path).line()
    assert f"is of user {stranger.uid}, and this is user {os.geteuid()}: start a node of your own" in line
    monkeypatch.undo()
    taken = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(taken))
        monkeypatch.setattr("os.geteuid", lambda: taken.stat().st_uid + 1)
        message = f"--socket='{taken}': expected a path of your own; user {taken.stat().st_uid} has a socket there"
        check_refused(capsys, f"node --memory 1MiB --socket {taken}", message)
        monkeypatch.undo()
        assert taken.exists()


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b""], ids=["another protocol", "nothing"])
def test_a_socket_of_another_program(tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: bytes) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()

        def serve() -> None:
            peer, _ = other.accept()
            with peer, contextlib.suppress(OSError):
                peer.recv(1000)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        message = f"what listens at {path} is no node, or has just ended: "
        check_refused(capsys, f"node status --socket {path}", message)
        thread.join(SOON_S)


def test_memory_smaller_than_one_block(running: NodeProcess) -> None:
    line = Engine(running.path, "large", parts=[1 << 20, 1]).line()
    why = "no room for the model of engine large: one block takes 1 MiB, and it may have 1 MiB of the node's memory"
    assert why in line
    assert "start the node with more (--memory, --share)" in line
    said(running, why)
    status = status_of(running.path)
    assert why in status["last_refused"]
    shown = " ".join(" ".join(described(status)).split())
    assert re.search(rf"refused \S+ \S+ ago, scheduler, process {os.getpid()}: this node has {why}", shown)


def test_more_engines_than_descriptors(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -n 140; exec "$@"', "sh"]  # room for 6
    with node(tmp_path / "node.sock", before=limited) as few:
        engines = [attached(few.path, f"engine {number}") for number in range(2)]
        line = Engine(few.path, "one more").line()
        assert "this node has 6 connections and takes no more; it may open 140 files: raise `ulimit -n`" in line
        said(few, "this node has 6 connections and takes no more")
        assert status_of(few.path)["connections"] >= 6, "it can still be looked at"
        leave(*engines.pop())
        leave(*attached(few.path, "one more"))
        leave(*engines.pop())


def test_a_memory_limit_of_the_container_below_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "proc/self/cgroup": "0::/pod\n",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/pod/memory.max": f"{1 << 30}\n",
        "sys/fs/cgroup/pod/memory.current": f"{1 << 29}\n",
        "sys/fs/cgroup/pod/memory.stat": "inactive_file 0\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("kvtide.node.settings.memory_left", lambda: memory_left(tmp_path))
    message = f"--memory='64GiB': expected at most the {1 << 29} bytes (512 MiB) that are left of the 1 GiB in "
    check_refused(capsys, f"node --memory 64GiB --socket {tmp_path}/node.sock", message)
    assert not (tmp_path / "node.sock").exists()


def test_two_nodes_on_one_socket(running: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    why = f"a path of its own for each node: process {running.process.pid} is a node that listens there; stop it,"
    check_refused(capsys, f"node --memory 1MiB --socket {running.path}", f"--socket='{running.path}': expected {why}")


def test_geometry_that_does_not_match(running: NodeProcess) -> None:
    scheduler, workers = attached(running.path, "confused")
    assert scheduler.welcome is not None
    told: dict[str, Any] = {"epoch": scheduler.welcome.epoch, "owner": scheduler.welcome.owner}
    third = Client(running.path, Hello(Role.WORKER, rank=2, part=2, **told))
    with pytest.raises(Refused, match="part 2 of a block that has 2") as refused:
        third.wait(SOON_S)
    assert refused.value.for_good
    third.close()
    frame = call_frame(calls.LookUp(1, [[b"key"], [b"key"]], 0, 17, [0, 0]))
    scheduler.send(frame.kind, frame.body)
    said(running, "of engine confused: this engine asks for what cannot be: it has another idea of the model's groups")
    leave(scheduler, workers)


@pytest.mark.parametrize(("what", "value"), [("seed", "1"), ("hashing", "sha256_cbor")])
def test_engines_whose_block_hashes_differ(tmp_path: Path, what: str, value: str) -> None:
    with node(tmp_path / "node.sock", "--share", "50%") as halves:
        first = Engine(halves.path, "first", hashing="sha256", seed="0")
        assert first.line().endswith(")")
        second = Engine(halves.path, "second", **{"hashing": "sha256", "seed": "0", what: value})
        differs = f'{what} is "{value}", not "{"0" if what == "seed" else "sha256"}"'
        assert second.line().endswith(f"; this engine shares nothing with the others there: {differs}")
        said(halves, f"engine second shares nothing with the others: {differs}")
        differs = f'{what} is "{"0" if what == "seed" else "sha256"}", not "{value}"'
        of_second = f"engine second has come, and shares nothing with this one: {differs}"
        wait_until(lambda: first.link.poll(time.monotonic()) or len(first.lines) == 2)
        assert first.lines[1] == f"the node at {halves.path} says: {of_second}"
        again = Engine(halves.path, "first again", hashing="sha256", seed="0")
        assert again.line().endswith(f"; this engine shares nothing with the others there: {differs}")
        assert len(status_of(halves.path)["namespaces"]) == 2
        for engine in (first, second, again):
            assert engine.is_attached
            engine.link.close()


def test_engines_whose_block_hashes_differ_where_there_is_no_room_for_a_second_model(tmp_path: Path) -> None:
    with node(tmp_path / "node.sock") as full:
        first = Engine(full.path, "first", seed="0")
        assert first.line().endswith(")")
        second = Engine(full.path, "second", seed="1")
        far_s = iter(range(10**6, 10**9, 1000))  # it waits between tries, and does not here
        wait_until(lambda: second.link.poll(next(far_s)) or status_of(full.path)["refused"] >= 3)
        assert 'engine second shares nothing with the others: seed is "1", not "0"' in second.lines[0]
        wait_until(lambda: first.link.poll(time.monotonic()) or len(first.lines) == 2)
        assert first.lines[1].endswith('engine second has come, and shares nothing with this one: seed is "0", not "1"')
        first.link.poll(time.monotonic())
        assert len(first.lines) == 2, "it is said once"
        first.link.close()
        second.link.close()


def test_who_is_refused_again_and_again_is_said_once(running: NodeProcess) -> None:
    for _ in range(3):
        Engine(running.path, "stubborn", parts=[2 << 20]).line()
    said(running, "stubborn")
    assert sum("stubborn" in line for line in running.lines) == 1
    assert status_of(running.path)["refused"] >= 3


@pytest.mark.parametrize("seed", range(20))
def test_garbage_and_half_messages(running: NodeProcess, seed: int) -> None:
    draw = random.Random(seed)
    before = status_of(running.path)["connections"]
    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.settimeout(SOON_S)
        sock.connect(str(running.path))
        if draw.random() < 0.5:
            hello = Hello(Role.SCHEDULER, engine="garbage", namespace=NAMESPACE).frame()
            sock.sendall(header(hello) + hello.body)
        for _ in range(draw.randrange(1, 5)):
            body = draw.randbytes(draw.randrange(60))
            sock.sendall(header(Frame(FIRST_OF_INDEX + draw.randrange(8), body)) + body)
        sock.sendall(draw.choice([b"", b"garbage", header(Frame(FIRST_OF_INDEX, bytes(99)))]))
    wait_until(lambda: status_of(running.path)["connections"] <= before)
    said(running, "closed the connection of")


# ---------------------------------------------------------------------- calls that can be read and make no sense

KEYS = some.lists(some.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]), max_size=6)
NUMBERS = some.integers(0, 12)
HUGE = some.integers(0, (1 << 63) - 1)
OFFERS = some.builds(
    Offer,
    group=some.integers(0, 2),
    keys=KEYS,
    parent=some.none() | some.sampled_from([b"a", b"b"]),
    end_tokens=some.sampled_from([0, 8, 16, 32, 160]) | HUGE,
    gone=some.lists(some.integers(0, 6), max_size=3),
    needs_prefix=some.booleans(),
    touch=some.booleans(),
)
CALLS: some.SearchStrategy[Call] = some.one_of(
    some.builds(
        calls.LookUp,
        id=NUMBERS,
        keys=some.lists(KEYS, min_size=1, max_size=2),
        device_tokens=some.integers(0, 64) | HUGE,
        num_tokens=some.integers(0, 128) | HUGE,
        firsts=some.just(()),
    ),
    some.builds(calls.Release, lease=NUMBERS, used=some.booleans()),
    some.builds(calls.Reserve, id=NUMBERS, offers=some.lists(OFFERS, max_size=3), room_blocks=NUMBERS),
    some.builds(calls.Settle, runs=some.lists(NUMBERS, max_size=4), kept=some.booleans()),
    some.builds(calls.Cut, run=NUMBERS, keep_blocks=NUMBERS),
    some.builds(calls.Ready, slots=NUMBERS),
)
EVENTS = some.lists(some.tuples(some.integers(0, 2), CALLS | some.sampled_from(["end", "clear"])), max_size=30)


def come(spaces: Spaces, owner: Owner) -> None:
    """Attach an engine that can use all slots."""
    spaces.attach(owner, Hello(Role.SCHEDULER, namespace={"parts": [1000], "groups": GROUPS}))
    spaces.handle(owner, call_frame(calls.Ready(8)))


@settings(max_examples=200)
@given(events=EVENTS, policy=some.sampled_from(list(POLICIES)))
def test_calls_that_make_no_sense(events: list[tuple[int, Any]], policy: str) -> None:
    spaces = Spaces(8000, lambda _: None, policy)
    owners = [Owner(number, f"e{number}", "") for number in range(3)]
    for owner in owners:
        come(spaces, owner)
    (space,) = spaces._spaces.values()
    space.index.grow(8)
    for number, what in events:
        if what == "clear":
            spaces.clear(space.name)
        elif what == "end":
            spaces.ending(owners[number])
            spaces.over(owners[number])
            owners[number] = Owner(owners[number].number + 3, "again", "")
            come(spaces, owners[number])
        else:
            with contextlib.suppress(BadFrame):
                list(spaces.handle(owners[number], call_frame(what)))
    for owner in owners:
        spaces.ending(owner)
        spaces.over(owner)
    counts = space.index.counts()
    assert counts["free"] + counts["cached"] == 8, "every slot comes back"
    spaces.close()
