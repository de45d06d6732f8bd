"""deploy/ on a real server and a real Prometheus: every panel has data, every alert fires at its fault."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.prometheus_server import Prometheus, alerts, every_panel_has_data, find_prometheus, prometheus
from tests.tiers.disk.test_faults import flip, places
from tests.tiers.shared.servers import Server
from tests.vllm.breakable import DEADLINE_MS, FOLDER
from tests.vllm.llm import prompt
from tests.vllm.node_rig import NodeProcess
from tests.vllm.test_server import complete, server

PATIENCE_S = 90
ALERTS = alerts("alerts.yml")
NODE_AWAY = "KVTideNodeAway"
"""Not of a server that has host memory of its own."""


class Traffic:
    """Somebody who asks all the time, for what is new and for what was asked before.

    More than device and host hold, so that most of it comes from the tiers.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.length = 290
        self._seeds = list(range(12))
        self._over = threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._seeds = [*self._seeds[1:], self._seeds[-1] + 1]
                for seed in (*self._seeds, self._seeds[-1]):
                    if not self._over.is_set():
                        complete(self._address, prompt(seed, self.length))
        except Exception as error:  # told by `until`
            self.error = error

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()


class Operator:
    """Looks at Prometheus while traffic goes on."""

    def __init__(self, watch: Prometheus, traffic: Traffic) -> None:
        self.watch, self.traffic = watch, traffic
        self.seen: set[str] = set()

    def until(self, holds: Callable[[], bool], what: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.traffic.error is None, self.traffic.error
            assert time.monotonic() < deadline_s, what()
            time.sleep(0.5)

    def until_firing(self, *alerts: str) -> None:
        self.until(lambda: set(alerts) <= self.watch.firing(), lambda: f"{alerts} do not fire")
        self.seen.update(alerts)


@contextmanager
def fault(folder: Path, name: str) -> Iterator[None]:
    (folder / name).touch()
    try:
        yield
    finally:
        (folder / name).unlink()


def test_every_panel_has_data_and_every_alert_fires_when_its_fault_is_made(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_prometheus()
    faults, disk, scraped = (tmp_path / name for name in ("faults", "disk", "prometheus"))
    for folder in (faults, disk, scraped):
        folder.mkdir()
    monkeypatch.setenv(FOLDER, str(faults))
    monkeypatch.setenv("KVTIDE_TEST_KEY", "ab" * 32)
    log = tmp_path / "server.log"
    with Server() as store:
        below = {"deadline_ms": DEADLINE_MS}
        tiers = [
            {"type": "disk", "path": str(disk), "size": "64MiB", "encryption_key_env": "KVTIDE_TEST_KEY", **below},
            {"type": "valkey", "url": f"unix://{store.socket}", **below},
        ]
        with (
            server(llama, log, "tests.vllm.breakable", host="1MiB", tiers=tiers) as address,
            prometheus(address, scraped, "alerts.yml") as watch,
        ):
            traffic = Traffic(address)
            operator = Operator(watch, traffic)
            with traffic.going_on():
                every_panel_has_data("grafana.json", watch, operator.until)
                # Nothing is wrong so far. What fires because the machine is busy for a moment does not go on.
                operator.until(lambda: not watch.firing(), watch.firing)
                make_faults(operator, faults, disk, store)
                # What a busy server does not answer within half a second is answered the next time.
                operator.until(lambda: not watch.unwell(), watch.unwell)
    assert operator.seen == set(ALERTS) - {NODE_AWAY}
    text = log.read_text()
    assert f"tiers below: disk {disk} (64 MiB), valkey unix://{store.socket}?db=0; mode eager" in text
    assert re.search(r"INFO .* kvtide: rank 0: disk tier in .*: 0 blocks found in", text), "lines of tiers are there"
    assert re.search(r"WARNING .* kvtide: rank 0: a corrupt record in", text)
    assert re.search(r"WARNING .* kvtide: rank 0: writing to .*: FileNotFoundError", text), "as the alert says"
    assert re.search(r"kvtide hits=[\d.]+% device \+ [\d.]+% host \+ [\d.]+% tiers, stored=\d+ blocks", text)


def test_a_node_that_is_away_is_an_alert_until_it_has_come(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_prometheus()
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    path = tmp_path / "node.sock"
    (scraped := tmp_path / "prometheus").mkdir()
    with (
        server(llama, tmp_path / "server.log", node=str(path)) as address,
        prometheus(address, scraped, "alerts.yml") as watch,
    ):
        traffic = Traffic(address)
        operator = Operator(watch, traffic)
        with traffic.going_on():
            operator.until_firing(NODE_AWAY)
            node = NodeProcess(path, tmp_path / "node.log")
            try:
                operator.until(lambda: not watch.firing(), watch.firing)
            finally:
                node.kill()


def make_faults(operator: Operator, faults: Path, disk: Path, store: Server) -> None:
    """Make one after the other, until its alert fires."""
    with fault(faults, "fail"):
        operator.until_firing("KVTideCopiesFail")
    with fault(faults, "hang"):
        operator.until_firing("KVTideRankSilent", "KVTideMessagesLost")
    with fault(faults, "slow"):
        operator.until_firing("KVTideTierTooSlow")
    with fault(faults, "unlocked"):
        operator.until_firing("KVTideWrongKey")
    for segment in disk.glob("rank-0-of-1/segment-*"):
        for place in places(segment):
            flip(segment, place + 5)
    operator.until_firing("KVTideRecordsDoNotVerify")
    (disk / "rank-0-of-1").rename(disk / "gone")
    operator.until_firing("KVTideTierPutsFail")
    operator.traffic.length = 700  # more blocks than host memory has
    operator.until_firing("KVTideHostFull")
    store.kill()
    operator.until_firing("KVTideTierOff")
    with fault(faults, "lost"):
        operator.until_firing("KVTideStopped")
