"""deploy/ on a real node and a real Prometheus: every panel has data, every alert fires at its fault, none before."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvtide.node.described_groups import described
from kvtide.node.hello import Hello, Role
from tests.deploy.prometheus_server import Prometheus, alerts, every_panel_has_data, find_prometheus, prometheus
from tests.node.real_engine import GROUPS, PARTS, RealEngine, engine
from tests.node.support import SOON_S, wait_until
from tests.node.test_node import attached, check_not_welcome, leave, node
from tests.ports import free_port
from tests.tiers.disk.test_faults import flip, places
from tests.tiers.shared.servers import Server

PATIENCE_S = 60
RULES = "alerts-node.yml"
BLOCKS = 60
SLOTS = (1 << 19) // sum(PARTS)
"""Of one of two models."""


class Operator:
    """Looks at Prometheus, and lets an engine work meanwhile."""

    def __init__(self, watch: Prometheus, worker: RealEngine) -> None:
        self.watch = watch
        self._engine = worker
        self._rounds = 0
        self.seen: set[str] = set()

    def until(self, holds: Callable[[], bool], what: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline_s, what()
            self._work()
            time.sleep(0.1)

    def _work(self) -> None:
        """Store something new, and load what is in memory, what has left it, and what never was."""
        self._rounds += 1
        self._engine.store(f"text {self._rounds}", BLOCKS)
        for ago in (0, 10, -1):
            self._engine.load(f"text {self._rounds - ago}", BLOCKS)

    def sees(self, alert: str, make: Callable[[], None] = lambda: None) -> None:
        """Check that an alert fires for a fault, and not before."""
        assert alert not in self.watch.firing()
        make()
        self.until(lambda: alert in self.watch.firing(), lambda: f"{alert} does not fire")
        self.seen.add(alert)

    def sees_end(self, alert: str) -> None:
        self.until(lambda: alert not in self.watch.firing(), lambda: f"{alert} does not end")


def test_every_panel_has_data_and_every_alert_fires_when_its_fault_is_made(tmp_path: Path) -> None:
    find_prometheus()
    disk, scraped = tmp_path / "disk", tmp_path / "prometheus"
    disk.mkdir()
    scraped.mkdir()
    path, port = tmp_path / "node.sock", free_port()
    with Server() as store:
        tiers = [{"type": "disk", "path": str(disk), "size": "32MiB"}, {"type": "valkey", "url": store.url}]
        options = [argument for tier in tiers for argument in ("--tier", json.dumps({**tier, "deadline_ms": 5000}))]
        with node(path, "--metrics", str(port), "--share", "50%", *options), engine(path) as worker:
            wait_until(lambda: {tier["state"] for tier in worker.space()["tiers"]} == {"closed"})
            with prometheus(f"127.0.0.1:{port}", scraped, RULES) as watch:
                operator = Operator(watch, worker)
                every_panel_has_data("grafana-node.json", watch, operator.until)
                assert not watch.firing(), "nothing is wrong so far"
                make_faults(operator, path, disk, store)
                # What a busy node does not answer within half a second is answered the next time.
                operator.until(lambda: not watch.unwell(), watch.unwell)
    assert operator.seen == set(alerts(RULES))


def make_faults(operator: Operator, path: Path, disk: Path, store: Server) -> None:
    """Make one after the other, until its alert fires."""
    operator.sees("KVTideNodeRefuses", lambda: ask_for_too_much(path))
    operator.sees("KVTideNodeGarbage", lambda: send_garbage(path))
    with an_engine_without_all_its_workers(path):
        operator.sees("KVTideNodeMemoryNotReady")
    operator.sees_end("KVTideNodeMemoryNotReady")
    with an_engine_that_ended_before_its_workers(path):
        operator.sees("KVTideNodeQuarantine")
    operator.sees_end("KVTideNodeQuarantine")
    with an_engine_that_reads_everything(path):
        operator.sees("KVTideNodeHostFull")
    operator.sees("KVTideNodeRecordsDoNotVerify", lambda: spoil(disk))
    operator.sees("KVTideNodeTierOff", store.kill)


def ask_for_too_much(path: Path) -> None:
    namespace = {"model": "big", "parts": [2 << 20], "groups": described(GROUPS)}
    check_not_welcome(path, Hello(Role.SCHEDULER, engine="big", namespace=namespace), "no room for the model")


def send_garbage(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(SOON_S)
        stranger.connect(str(path))
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        while stranger.recv(1000):
            pass


@contextmanager
def an_engine_without_all_its_workers(path: Path) -> Iterator[None]:
    """Be the scheduler of another model and one of its two workers."""
    scheduler, workers = attached(path, "half", parts=1)
    yield
    leave(scheduler, workers)


@contextmanager
def an_engine_that_ended_before_its_workers(path: Path) -> Iterator[None]:
    """Let an engine read a block, and its scheduler go; its workers are in this process, which goes on."""
    ended = RealEngine(path, "ended")
    ended.store("held", 1)
    hold(ended, "held", 1)
    ended.link.close()
    yield
    let_go(ended)


def let_go(ended: RealEngine) -> None:
    """Say that nothing is copied any more: this process goes on."""
    for worker in ended.workers:
        worker.drained()
    ended.close()


@contextmanager
def an_engine_that_reads_everything(path: Path) -> Iterator[None]:
    """Lease all slots but a few."""
    reader = RealEngine(path, "reader")
    reader.store("all", SLOTS - BLOCKS // 2)
    hold(reader, "all", SLOTS - BLOCKS // 2)
    yield
    let_go(reader)


def hold(reader: RealEngine, text: str, blocks: int) -> None:
    _, match = reader.look_up(text, blocks)
    assert match.tokens, f"there is nothing of {text}"
    reader.index.lease(match)
    reader.step()


def spoil(disk: Path) -> None:
    """Change a byte in each record."""
    segments = list(disk.glob("namespace-*/rank-*/segment-*"))
    assert segments
    for segment in segments:
        for place in places(segment):
            flip(segment, place + 5)
