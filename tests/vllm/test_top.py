"""`kvtide top` beside a real server: the ratios are those that its requests made."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.vllm.fixtures import PROMPTS
from tests.vllm.llm import BLOCK_TOKENS
from tests.vllm.test_round_trip import hit
from tests.vllm.test_server import complete, server


def top_once(address: str) -> Any:
    command = [sys.executable, "-m", "kvtide", "top", address, "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 (our own)
    (shown,) = json.loads(done.stdout)["servers"]
    return shown


def test_top_shows_the_ratios_that_requests_made(llama: Path, tmp_path: Path) -> None:
    prompts = PROMPTS[:6]  # 2,100 tokens, the device has room for 1,504
    last = prompts[-1]
    with server(llama, tmp_path / "server.log") as address:
        for tokens in (*prompts, *prompts, last):  # computed, then mostly from the host, then from the device
            complete(address, tokens)
        time.sleep(1.5)  # numbers are handed over once a second
        complete(address, last)
        time.sleep(0.5)
        shown = top_once(address)
    assert shown["state"] == "up"
    assert not shown["why"]
    counted, ratio = shown["since_start"], shown["since_start"]["hit_ratio"]
    asked = 2 * sum(map(len, prompts)) + 2 * len(last)
    found = sum(map(hit, prompts)) + 2 * hit(last)
    assert counted["tokens"]["computed"] == asked - found
    assert ratio["all"] == found / asked
    assert ratio["device"] >= 2 * hit(last) / asked
    assert ratio["host"] == counted["blocks"]["loaded"] * BLOCK_TOKENS / asked > 0.3
    assert ratio["tiers"] == 0
    assert counted["requests"] == 2 * len(prompts) + 2
    assert counted["blocks"]["stored"] == sum(len(tokens) // BLOCK_TOKENS for tokens in prompts)
    assert counted["ttft_ms"] > 0
    assert counted["ttft_saved_ms"] is not None
