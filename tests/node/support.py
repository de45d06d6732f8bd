"""Servers in a thread with a handler that notes what it is told, and clients in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvtide.node.arenas import NodeArena
from kvtide.node.client import Client
from kvtide.node.credentials import Access
from kvtide.node.errors import BadFrame, Refused
from kvtide.node.frames import FIRST_OF_INDEX, Frame
from kvtide.node.hello import Hello, Role
from kvtide.node.listening import Listening
from kvtide.node.loop import Loop
from kvtide.node.owners import Owner, Owners
from kvtide.node.peers import Limits
from kvtide.node.server import Server
from tests.left_behind import Before

SOURCE = Path(__file__).parents[2] / "src"
ECHO, MANY, NONSENSE, NOTE = (FIRST_OF_INDEX + number for number in range(4))
"""What a server takes `ECHO` for is a look-up."""
LARGE_BYTES = 1 << 20
SOON_S = 20.0
"""What takes milliseconds may take seconds on a busy machine."""


def wait_until(condition: Callable[[], object], instead: Callable[[], object] = lambda: "it does not happen") -> None:
    """`instead`: what to say if it does not happen."""
    end_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end_s, instead()
        time.sleep(0.005)


def wait_to_read(client: Client) -> None:
    assert client._wait(time.monotonic() + SOON_S), "nothing comes"


class Recorder:
    """Answers `ECHO` with what it was sent, `MANY` with much and `NOTE` with nothing; notes who ends and is over."""

    def __init__(self) -> None:
        self.arena: NodeArena | None = None
        self.far = ""
        """What workers are told of their memory."""
        self.told: list[tuple[str, str]] = []
        self.heard: list[str] = []
        """Engines of frames, in the order in which they were looked at."""

    def attach(self, owner: Owner, hello: Hello) -> Mapping[str, object]:
        if hello.engine == "unwanted":
            raise Refused("not this one", for_good=True)
        return {"slots": 4}

    def join(self, owner: Owner, hello: Hello) -> Sequence[NodeArena]:
        if hello.part > 0:
            raise Refused("no such part", for_good=True)
        owner.far[hello.rank] = self.far
        if self.arena is None:
            self.arena = NodeArena(0, 4, 1000)
            self.arena.touch(lambda: None)
        return [self.arena]

    def handle(self, owner: Owner, frame: Frame) -> Iterable[Frame]:
        self.heard.append(owner.engine)
        if frame.kind == NOTE:
            return []
        if frame.kind == ECHO:
            return [Frame(ECHO, frame.body, frame.tag)]
        if frame.kind == MANY:
            return [Frame(MANY, bytes(LARGE_BYTES), frame.tag)]
        raise BadFrame("nonsense")

    def rest(self) -> bool:
        return False

    def ending(self, owner: Owner) -> None:
        self.told.append(("ending", owner.engine))

    def over(self, owner: Owner) -> None:
        self.told.append(("over", owner.engine))

    def clear(self, name: str) -> int:
        if name != "known":
            raise Refused("no such namespace", for_good=True)
        return 7

    def status(self) -> Mapping[str, object]:
        return {"told": len(self.told)}


class Rig:
    """One server in a thread."""

    def __init__(self, path: Path, limits: Limits, access: Access | None, grace_s: float) -> None:
        self.path = path
        self.lines: list[str] = []
        self.handler = Recorder()
        self.loop = Loop(tick_s=0.02)
        self.server = Server(
            self.loop,
            Listening(path),
            self.handler,
            epoch="this-epoch",
            access=access or Access(os.geteuid()),
            limits=limits,
            say=self.lines.append,
            status=self.handler.status,
            owners=Owners(grace_s),
        )
        self._clients: list[Client] = []
        self._thread = threading.Thread(target=self.loop.run, args=(self.server.tick,))
        self._thread.start()

    def call(self, what: Callable[[], Any]) -> Any:
        """Return what a function returns in the server's thread."""
        results: list[Any] = []
        done = threading.Event()

        def run() -> None:
            results.append(what())
            done.set()

        self.loop.post(run)
        assert done.wait(SOON_S), "the server does not live"
        return results[0]

    def scheduler(self, engine: str = "engine") -> Client:
        return self._welcomed(Hello(Role.SCHEDULER, engine=engine, namespace={"parts": [1000]}))

    def worker(self, scheduler: Client, **more: Any) -> Client:
        assert scheduler.welcome is not None
        told = {"epoch": scheduler.welcome.epoch, "owner": scheduler.welcome.owner, **more}
        return self._welcomed(Hello(Role.WORKER, engine="engine", **told))

    def _welcomed(self, hello: Hello) -> Client:
        client = Client(self.path, hello)
        try:
            client.wait(SOON_S)
        except BaseException:
            client.close()
            raise
        self._clients.append(client)
        return client

    def check_alive(self) -> None:
        """See that it serves."""
        client = self.scheduler("alive")
        answer = client.ask(ECHO, b"are you there?", timeout_s=SOON_S)
        assert answer is not None
        assert answer.body == b"are you there?"
        client.close()
        wait_until(lambda: self.call(lambda: all(owner.engine != "alive" for owner in self.server.lives.owners)))
        self.handler.told = [(what, engine) for what, engine in self.handler.told if engine != "alive"]

    def close(self) -> None:
        self.loop.post(self.loop.stop)
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()
        self.server.close()
        self.loop.close()
        for client in self._clients:
            client.close()
            for arena in client.arenas:
                arena.close()
        if self.handler.arena is not None:
            self.handler.arena.close()


MANY_CONNECTIONS = Limits(connections=100)


def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system have no thread left, as with `ulimit -u`."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def held(rig: Rig) -> threading.Event:
    """Let the node do nothing until the event is set."""
    is_held, gate = threading.Event(), threading.Event()

    def wait() -> None:
        is_held.set()
        gate.wait(SOON_S)

    rig.loop.post(wait)
    assert is_held.wait(SOON_S)
    return gate


@contextmanager
def serving(
    folder: Path, limits: Limits = MANY_CONNECTIONS, access: Access | None = None, grace_s: float = 30.0
) -> Iterator[Rig]:
    """A server that is there, and leaves neither descriptors nor threads behind."""
    before = Before()
    rig = Rig(folder / "node.sock", limits, access, grace_s)
    try:
        yield rig
    finally:
        rig.close()
    before.check()


def python(code: str, *arguments: object, **more: Any) -> subprocess.Popen[str]:
    """Start a process that can import kvtide."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **more.pop("env", {})}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(  # noqa: S603 (our own)
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more
    )
