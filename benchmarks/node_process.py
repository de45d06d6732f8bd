"""A real node, in a process of its own, for the benchmarks that need one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 60.0


@contextmanager
def node_process(memory_bytes: int, *options: str) -> Iterator[Path]:
    """Start a node, and return its socket. What it says is shown if it does not start."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        socket = Path(folder) / "node.sock"
        command = [sys.executable, "-m", "kvtide", "node", "--memory", str(memory_bytes), "--socket", str(socket)]
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log)  # noqa: S603 (ours)
        try:
            end_s = time.monotonic() + TIMEOUT_S
            while not socket.exists():
                assert process.poll() is None, f"the node does not start: {_said(log.name)}"
                assert time.monotonic() < end_s, f"the node takes too long to start: {_said(log.name)}"
                time.sleep(0.01)
            yield socket
        finally:
            process.kill()
            process.wait(TIMEOUT_S)


def _said(log: str) -> str:
    return Path(log).read_text().strip()
