"""The demo with a node: a second engine, and a restarted one, find what the first one has computed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvtide.demo.compare import REFERENCE, Comparison, OnTurn, served
from kvtide.demo.settings import DemoSettings
from kvtide.demo.workload import conversations
from kvtide.engine import Engine
from kvtide.errors import ConfigError
from kvtide.node.ask import status_of
from kvtide.node.errors import NodeError
from kvtide.node.socket_path import read_node_path

RUNS = (REFERENCE, "none", "first", "second", "restarted")
START_S = 30.0
"""So long a node may take to be there."""
STOP_S = 15.0


def compare_at_node(settings: DemoSettings, node: str, on_turn: OnTurn) -> Comparison:
    """Run the workload on several engines that share a node, at a path or, if that is empty, one of their own."""
    said = conversations(settings)
    results = {}

    def serve(engine: Engine, run: str) -> None:
        results[run] = served(engine, settings, run, said, on_turn)

    with _own_node(settings) if not node else _other_node(node) as path:
        small, at_node = settings.engine(settings.device_blocks), {"node": str(path)}
        with Engine(settings.engine(settings.unlimited_blocks)) as engine:
            serve(engine, REFERENCE)
        with Engine(small) as engine:
            serve(engine, "none")
        with Engine(small, at_node) as first:
            serve(first, "first")
            first.run()  # until all is stored
            with Engine(small, at_node) as second:
                serve(second, "second")
        with Engine(small, at_node) as restarted:
            serve(restarted, "restarted")
    return Comparison(settings, results)


@contextmanager
def _other_node(node: str) -> Iterator[Path]:
    path = read_node_path("--node", node)
    try:
        status_of(path)
    except NodeError as error:
        raise ConfigError(
            "--node", node, f"a node that is there: {error}; without a path the demo starts one"
        ) from error
    yield path


@contextmanager
def _own_node(settings: DemoSettings) -> Iterator[Path]:
    """Start a node with the memory of the settings, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="kvtide-") as folder:
        path = Path(folder) / "node.sock"
        command = [sys.executable, "-m", "kvtide", "node", "--memory", str(settings.host), "--socket", str(path)]
        with (Path(folder) / "lines").open("w+") as lines:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=lines)  # noqa: S603 (our own)
            try:
                _wait_for(process, path, Path(lines.name))
                yield path
            finally:
                _stop(process)


def _wait_for(process: subprocess.Popen[bytes], path: Path, lines: Path) -> None:
    end_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(NodeError):
            status_of(path)
            return
        if process.poll() is not None or time.monotonic() >= end_s:
            raise NodeError(f"the node of the demo does not start: {lines.read_text().strip()}")
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)
