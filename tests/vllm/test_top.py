"""`kvtide top` beside a real server: the ratios are those that its requests made."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.vllm.fixtures import PROMPTS
from tests.vllm.llm import BLOCK_TOKENS
from tests.vllm.test_round_trip import hit
from tests.vllm.test_server import complete, server, told
from tests.vllm.test_tiers import disk


def top_once(address: str) -> Any:
    command = [sys.executable, "-m", "kvtide", "top", address, "--once", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 (our own)
    (shown,) = json.loads(done.stdout)["servers"]
    return shown


def has_counted(shown: Any, requests: int, stored: int) -> bool:
    counted = shown["since_start"]
    return bool(counted["requests"] == requests and counted["blocks"]["stored"] >= stored)


def moves_bytes(shown: Any) -> bool:
    """Whether something went to the tier and came from it, as far as it was told: that is done once a second."""
    traffic = shown["since_start"]["tiers"].get("disk", {"put_bytes": 0})
    return bool(traffic["put_bytes"] > 0 and traffic["got_bytes"] > 0)


def test_top_shows_the_ratios_that_requests_made(llama: Path, tmp_path: Path) -> None:
    prompts = PROMPTS[:6]  # 2,100 tokens, the device has room for 1,504
    last = prompts[-1]
    stored = sum(len(tokens) // BLOCK_TOKENS for tokens in prompts)
    with server(llama, tmp_path / "server.log") as address:
        for tokens in (*prompts, *prompts, last):  # computed, then mostly from the host, then from the device
            complete(address, tokens)
        complete(address, last)
        shown = told(lambda: top_once(address), lambda shown: has_counted(shown, 2 * len(prompts) + 2, stored))
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
    assert counted["blocks"]["stored"] == stored
    assert counted["ttft_ms"] > 0
    assert counted["ttft_saved_ms"] is not None


def test_top_shows_a_tier_that_fills_and_what_came_from_it(llama: Path, tmp_path: Path) -> None:
    prompts = PROMPTS[:6]
    (tmp_path / "tier").mkdir()
    # 32 slots: less than two prompts, so that most of what comes back must come from the disk.
    with server(llama, tmp_path / "server.log", host="2MiB", tiers=[disk(tmp_path / "tier")]) as address:
        asked = [*prompts, *prompts]
        for tokens in asked:
            complete(address, tokens)

        def read() -> Any:
            complete(address, prompts[0])
            asked.append(prompts[0])
            return top_once(address)

        shown = told(read, lambda shown: has_counted(shown, len(asked), 1) and moves_bytes(shown))
    (tier,) = shown["now"]["tiers"].values()
    assert 0 < tier["fill"] < 1
    assert tier["budget_bytes"] == 64 << 20
    assert tier["off_ranks"] == []
    counted = shown["since_start"]
    assert counted["blocks"]["evicted"] > 0
    assert counted["blocks"]["sunk"] > 0
    assert moves_bytes(shown)
    assert counted["hit_ratio"]["tiers"] > 0
    assert sum(counted["tokens"].values()) == sum(map(len, asked))
