"""The benchmark of policies, in its small mode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kvtide.core.eviction import POLICIES

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "policies.py"


def run(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), "--small", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout  # noqa: S603


def test_json_has_every_policy_at_every_size_and_marks_the_best() -> None:
    result = json.loads(run("--json"))
    assert result["unique_blocks"] > 0
    rows = result["rows"]
    assert {row["policy"] for row in rows} >= {*POLICIES, "belady"}
    assert {row["policy"] for row in rows if row.get("best")} == {"forecast"}
    for row in rows:
        bound = next(r["hit"] for r in rows if r["policy"] == "belady" and r["percent"] == row["percent"])
        assert 0 <= row["hit"] <= bound


def test_the_table_names_every_policy() -> None:
    table = run()
    assert all(policy in table for policy in POLICIES)
