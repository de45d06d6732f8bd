"""Every benchmark runs, in its small mode, and prints what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout  # noqa: S603


def test_core_prints_a_row_per_size() -> None:
    rows = json.loads(run("core.py", "--small", "--json"))["rows"]
    assert [row["slots"] for row in rows] == [2_000, 5_000]
    for row in rows:
        assert row.keys() == {"slots", "store_us", "load_us", "bytes_per_slot"}
        assert min(row.values()) > 0


def test_core_prints_a_table() -> None:
    assert "host slots" in run("core.py", "--small")
