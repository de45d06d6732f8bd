"""`kvtide node` as a process: it starts with a line, serves, survives, and stops in good order."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kvtide.node.ask import status_of
from kvtide.node.client import Client
from kvtide.node.errors import Gone, NoNode, Refused
from kvtide.node.hello import PROTOCOL, Hello, Role
from kvtide.node.lines import LINES_MAX
from tests.command_line import check_refused, run
from tests.left_behind import Before
from tests.node.support import SOON_S, SOURCE, wait_to_read, wait_until
from tests.ports import free_port

GROUPS = [{"kind": "FullAttention", "block_tokens": 16}]
NAMESPACE = {"model": "tiny", "strange": "\ud800\x00é", "parts": [1000, 500], "groups": GROUPS}


@pytest.fixture(autouse=True)
def _signals_are_heard() -> Iterator[None]:
    """By nodes of these tests, also where tests run by nohup or in the background: children ignore what we ignore."""
    ignored = [number for number in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


class NodeProcess:
    """A node, and the lines that it says."""

    def __init__(self, path: Path, *arguments: str, before: Sequence[str] = (), **environment: str) -> None:
        """`before`: a command that runs the node."""
        self.path = path
        command = [sys.executable, "-m", "kvtide", "node", "--memory", "1MiB", "--socket", str(path), *arguments]
        command = [*before, *command]
        self.process = subprocess.Popen(  # noqa: S603 (our own)
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE), **environment}
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        wait_until(lambda: self.lines or self.process.poll() is not None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.strip())
        self.process.stderr.close()

    def end(self, number: int) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(SOON_S)
        self._reader.join(SOON_S)
        return code


@contextmanager
def node(path: Path, *arguments: str, before: Sequence[str] = (), **environment: str) -> Iterator[NodeProcess]:
    before_it = Before()
    found = NodeProcess(path, *arguments, before=before, **environment)
    try:
        yield found
    finally:
        found.end(signal.SIGKILL)
    before_it.check()


def attached(path: Path, engine: str = "engine", parts: int = 2) -> tuple[Client, list[Client]]:
    """A scheduler and its workers."""
    scheduler = Client(path, Hello(Role.SCHEDULER, engine=engine, namespace=NAMESPACE))
    welcome = scheduler.wait(SOON_S)
    told: dict[str, Any] = {"engine": engine, "epoch": welcome.epoch, "owner": welcome.owner}
    workers = [Client(path, Hello(Role.WORKER, rank=part, part=part, **told)) for part in range(parts)]
    for worker in workers:
        worker.wait(SOON_S)
    return scheduler, workers


def check_not_welcome(path: Path, hello: Hello, why: str) -> None:
    client = Client(path, hello)
    with pytest.raises(Refused, match=why):
        client.wait(SOON_S)
    client.close()


def close(*clients: Client) -> None:
    for client in clients:
        client.close()
        for arena in client.arenas:
            arena.close()


def test_a_life_of_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.sock"
    with node(path) as running:
        assert re.fullmatch(
            rf"kvtide: node \w+ listens at {path}: 1 MiB for all engines .*protocol {PROTOCOL}\)", running.lines[0]
        )
        scheduler, workers = attached(path)
        assert [arena.description.slot_bytes for worker in workers for arena in worker.arenas] == [1000, 500]
        slots = (1 << 20) // 1500
        assert scheduler.welcome is not None
        assert scheduler.welcome.more == {"slots": slots, "unlike": "", "room": ""}
        wait_until(lambda: status_of(path)["namespaces"][0]["ready_slots"] == slots)
        check_status(running, capsys, slots)
        is_ready = re.compile(rf"kvtide: part [01] of \w+: {slots} of {slots} slots are ready, .*")
        wait_until(lambda: sum(map(bool, map(is_ready.fullmatch, running.lines))) == 2)  # nothing is said late
        close(*workers, scheduler)
        wait_until(lambda: status_of(path)["engines"][0]["state"] == "ending")  # this process goes on
        assert running.end(signal.SIGTERM) == 0
        assert list(tmp_path.iterdir()) == []
        assert re.fullmatch(r"kvtide: node \w+ is stopping", running.lines[-2])
        assert re.fullmatch(r"kvtide: node \w+ has stopped", running.lines[-1])


def check_status(running: NodeProcess, capsys: pytest.CaptureFixture[str], slots: int) -> None:
    code, out, err = run(capsys, "node", "status", "--socket", running.path)
    assert (code, err) == (0, "")
    assert f"process {running.process.pid}, up" in out
    assert f"{slots} slots, 100.0% ready" in out
    assert "engine     engine (open): 0 slots leased, 0 being written" in out
    assert f"  worker of rank 1: process {os.getpid()}, connected" in out
    code, out, err = run(capsys, "node", "status", "--json", "--socket", running.path)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [process["role"] for process in found["engines"][0]["processes"]] == ["scheduler", "worker", "worker"]
    assert found["namespaces"][0]["description"] == NAMESPACE
    assert found["epoch"] in running.lines[0]


def test_a_stop_tells_engines_and_waits_for_them_to_close(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with node(path) as running:
        scheduler, workers = attached(path)
        running.process.send_signal(signal.SIGINT)
        for client in (scheduler, *workers):
            wait_to_read(client)
            assert client.poll() == []
            assert client.is_stopping
        with pytest.raises(NoNode):
            attached(path)
        assert running.process.poll() is None
        close(scheduler, *workers)
        assert running.process.wait(SOON_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_second_signal_does_not_wait(tmp_path: Path, number: int) -> None:
    path = tmp_path / "node.sock"
    with node(path) as running:
        scheduler, workers = attached(path)
        running.process.send_signal(number)
        wait_to_read(scheduler)
        waits = ": 3 connections may take 10 s to close; stop again to end at once"
        wait_until(lambda: any(line.endswith(f" is stopping{waits}") for line in running.lines))
        assert running.end(signal.SIGTERM) == 0
        with pytest.raises(Gone):
            while_poll(scheduler)
        close(scheduler, *workers)


def test_whoever_sends_garbage_again_and_again_does_not_keep_a_node_from_saying_that_it_stops(tmp_path: Path) -> None:
    with node(tmp_path / "node.sock") as running:
        for _ in range(2 * LINES_MAX):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(running.path))
                sock.sendall(b"garbage")
                with suppress(ConnectionResetError):
                    assert sock.recv(1) == b"", "it is closed"
        assert running.end(signal.SIGTERM) == 0
        assert re.fullmatch(r"kvtide: node \w+ is stopping", running.lines[-2])
        assert re.fullmatch(r"kvtide: node \w+ has stopped", running.lines[-1])


def test_nohup_is_heeded(tmp_path: Path) -> None:
    with node(tmp_path / "node.sock", before=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]) as running:
        running.process.send_signal(signal.SIGHUP)
        assert status_of(running.path)["pid"] == running.process.pid
        assert running.end(signal.SIGTERM) == 0


def while_poll(client: Client) -> None:
    """Read until the end."""
    while True:
        wait_to_read(client)
        client.poll()


def test_what_is_mapped_outlives_a_node_that_is_killed_and_the_next_one_is_another_epoch(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with node(path) as running:
        scheduler, workers = attached(path)
        memory = workers[0].arenas[0].memory
        memory[5, :] = 9
        running.end(signal.SIGKILL)
        assert path.exists()
        with pytest.raises(Gone):
            while_poll(scheduler)
        with pytest.raises(NoNode, match="no node listens"):
            attached(path)
        assert memory[5].sum() == 9000
        memory[6, :] = 1
        with node(path) as again:
            assert again.process.poll() is None
            old = scheduler.welcome
            assert old is not None
            check_not_welcome(path, Hello(Role.WORKER, epoch=old.epoch, owner=old.owner), "another life of the node")
            new_scheduler, new_workers = attached(path)
            assert not new_workers[0].arenas[0].memory.any(), "nothing of the old epoch is there"
            close(new_scheduler, *new_workers)
        del memory
        close(scheduler, *workers)


def test_two_nodes_at_one_socket_are_refused_and_the_first_one_lives(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    with node(path) as first:
        second = NodeProcess(path)
        assert second.process.wait(SOON_S) == 2
        second._reader.join(SOON_S)
        assert re.fullmatch(
            rf"kvtide: error: --socket='.*': .*process {first.process.pid} is a node .*", second.lines[0]
        )
        assert status_of(path)["pid"] == first.process.pid


def test_systemd_is_told_when_it_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SOON_S)
        with node(tmp_path / "node.sock", NOTIFY_SOCKET=str(tmp_path / "notify")) as running:
            assert systemd.recv(200).startswith(b"READY=1\nSTATUS=1 MiB for all engines")
            running.process.send_signal(signal.SIGTERM)
            assert systemd.recv(200) == b"STOPPING=1"


@pytest.mark.parametrize("files", [8, 131])
def test_a_node_that_could_serve_no_engine_for_lack_of_descriptors_does_not_start(tmp_path: Path, files: int) -> None:
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"]
    found = NodeProcess(tmp_path / "node.sock", before=limited)
    assert found.end(0) == 2
    why = f"this process may open {files} files, and a node takes 132: raise `ulimit -n`"
    assert found.lines == [f"kvtide: error: {why}"]
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- one node for several tests


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[NodeProcess]:
    with node(tmp_path_factory.mktemp("shared") / "node.sock", "--metrics", str(port)) as running:
        yield running
        assert running.end(signal.SIGTERM) == 0


def test_prometheus_reads_it(shared: NodeProcess, port: int) -> None:
    scheduler, workers = attached(shared.path)
    wait_until(lambda: 'kvtide_node_engines{state="open"} 1.0' in metrics(port))
    leave(scheduler, workers)


def metrics(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SOON_S) as answer:
        return str(answer.read().decode()).splitlines()


def leave(scheduler: Client, workers: list[Client]) -> None:
    """Go in good order."""
    for worker in workers:
        worker.drained()
    close(*workers, scheduler)


def test_a_hundred_engines_that_come_and_go_leave_nothing_at_the_node(shared: NodeProcess) -> None:
    counts = []
    for many in (5, 100):
        for number in range(many):
            leave(*attached(shared.path, f"engine {number}"))
        wait_until(lambda: status_of(shared.path)["engines"] == [])
        open_there = len(os.listdir(f"/proc/{shared.process.pid}/fd"))
        counts.append(open_there + status_of(shared.path)["threads"])
    # One that asked just now may still be connected. Something left behind by each of them would be a hundred.
    assert counts[1] - counts[0] < 10


def test_a_node_that_hangs_is_said_to(shared: NodeProcess) -> None:
    shared.process.send_signal(signal.SIGSTOP)
    with pytest.raises(NoNode, match=r"did not answer a hello within 0.2 s"):
        status_of(shared.path, timeout_s=0.2)
    shared.process.send_signal(signal.SIGCONT)
    assert status_of(shared.path)["pid"] == shared.process.pid


def test_a_model_that_does_not_fit_is_refused_with_the_sizes(shared: NodeProcess) -> None:
    leave(*attached(shared.path))
    big = Hello(Role.SCHEDULER, engine="big", namespace={"parts": [2 << 20], "groups": GROUPS})
    why = (
        r"no room for the model of engine big: one block takes 2 MiB, and it may have 1 MiB of the node's memory: "
        r"start the node with more \(--memory, --share\); engine big "
        r'shares nothing with the others: model is missing, not "tiny", parts is \[2097152\], not \[1000,500\]'
    )
    check_not_welcome(shared.path, big, why)
    nothing = Client(shared.path, Hello(Role.SCHEDULER, engine="nothing", namespace={"parts": []}))
    with pytest.raises(Gone):
        nothing.wait(SOON_S)
    nothing.close()
    wait_until(lambda: any("a namespace without parts" in line for line in shared.lines))


# ---------------------------------------------------------------------- what is refused at the start


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "a node needs --memory SIZE and --socket PATH"),
        ("--memory 1MiB", "a node needs --memory SIZE and --socket PATH"),
        ("--memory much --socket /tmp/x", "--memory='much': expected a size"),
        ("--memory 900TiB --socket /tmp/x", "--memory='900TiB': expected at most the"),
        (
            "--memory 1MiB --socket /no/such/folder/node.sock",
            "--socket='/no/such/folder/node.sock': expected a path in a",
        ),
        ("--memory 1MiB --socket /tmp/x --group no-such-group", "--group='no-such-group': expected a group"),
        ("--memory 1MiB --socket /tmp/x --metrics 70000", "--metrics=70000: expected a whole number"),
        ("--memory 1MiB status", "options of 'status' go behind it"),
        ("status", "which node? --socket PATH"),
        ("status --socket /no/such/node.sock", "no node listens at /no/such/node.sock (there is no folder /no/such)"),
        ("statsu", "no such command: 'statsu'; did you mean \"status\"?"),
    ],
)
def test_what_cannot_work_is_refused_by_name(capsys: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    check_refused(capsys, f"node {arguments}", message)


def test_a_port_that_is_taken_is_refused_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        arguments = f"node --memory 1MiB --socket {tmp_path / 'node.sock'} --metrics {port}"
        check_refused(capsys, arguments, f"--metrics={port}: expected a port that can be used")
    assert list(tmp_path.iterdir()) == []
