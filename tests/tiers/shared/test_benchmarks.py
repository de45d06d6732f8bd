"""The benchmarks of shared stores run, in their small mode, and say what they promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers.shared.servers import KINDS, find_server, mooncake_program, server_program

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "tiers.py"


@pytest.mark.parametrize(("tier", "needs"), [("valkey", server_program), ("mooncake", mooncake_program)])
def test_a_store_is_compared_with_its_plain_client(tier: str, needs: object) -> None:
    assert callable(needs)
    needs()  # or skip, saying what is missing
    stores = [kind for kind in KINDS if find_server(kind)] if tier == "valkey" else [tier]
    command = [sys.executable, str(BENCHMARK), "--small", "--json", "--tier", tier]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout  # noqa: S603
    rows = json.loads(shown[shown.index("{") :])["rows"]
    assert [(row["tier"], row["block_bytes"]) for row in rows] == [
        (store, size) for store in stores for size in (64 << 10, 1 << 20)
    ]
    for row in rows:
        assert min(row["put_gbps"], row["get_gbps"], row["plain_put_gbps"], row["plain_get_gbps"]) > 0
