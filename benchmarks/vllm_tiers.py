"""What tiers give a second engine: time to first token of prompts that another engine has computed.

    .venv-vllm/bin/python benchmarks/vllm_tiers.py [--json] [--small]

Real vLLM (its CPU build where there is no GPU), a Llama of random weights, prompts of 1,000 tokens. A first engine
computes some prompts and lets their blocks sink; a second engine, started afterwards, is asked for these and for as
many that nobody has computed, in turn. Shown for a disk (a restart) and for a Valkey or Redis server on loopback (two
servers that share a store). Outputs are compared with those of an engine without kvtide.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("PYTHONHASHSEED", "0")

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

from kvtide.demo.random_model import Shape, write_llama

BLOCK_TOKENS = 32
VOCAB = 512
MODEL = Shape(layers=8, hidden=512, heads=8, kv_heads=4, head_size=64, mlp=1536, vocab=VOCAB)
MODEL_SMALL = Shape(vocab=VOCAB)


@dataclass
class Row:
    """Medians over prompts."""

    tier: str
    computed_ms: float
    """First token of a prompt that nobody has computed."""
    fetched_ms: float
    """First token of a prompt whose blocks another engine has left in the tier."""
    hit: float
    """Share of the tokens of such prompts that came from there."""
    identical: bool


def prompt(number: int, tokens: int) -> list[int]:
    draw = random.Random(number)  # noqa: S311 - not a secret
    return [draw.randrange(3, VOCAB) for _ in range(tokens)]


@contextmanager
def engine(model: Path, tiers: list[dict[str, object]] | None) -> Iterator[Any]:
    args: dict[str, Any] = {}
    if tiers is not None:
        args["kv_transfer_config"] = {
            "kv_connector": "KVTideConnector",
            "kv_connector_module_path": "kvtide.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host": "256MiB", "tiers": tiers},
        }
    llm = LLM(
        str(model),
        skip_tokenizer_init=True,
        dtype="float32",
        block_size=BLOCK_TOKENS,
        num_gpu_blocks_override=512,
        enforce_eager=True,
        max_model_len=2048,
        **args,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


def serve(llm: Any, tokens: list[int]) -> tuple[float, tuple[int, ...], int]:
    """Return seconds to the first token, the tokens, and how many tokens of the prompt were found."""
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, detokenize=False)
    begun_s = time.perf_counter()
    llm.llm_engine.add_request(f"{begun_s}", {"prompt_token_ids": tokens}, params)
    first_s = None
    while True:
        for output in llm.llm_engine.step():
            first_s = first_s or time.perf_counter() - begun_s
            if output.finished:
                return first_s, tuple(output.outputs[0].token_ids), output.num_cached_tokens or 0


def drain(llm: Any) -> None:
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    while scheduler.has_requests():
        llm.llm_engine.step()


def measure(name: str, model: Path, tiers: list[dict[str, object]], prompts: int, tokens: int) -> Row:
    shared = [prompt(number, tokens) for number in range(prompts)]
    fresh = [prompt(1000 + number, tokens) for number in range(prompts)]
    with engine(model, None) as plain:
        expected = [serve(plain, one)[1] for one in shared]
    with engine(model, tiers) as first:
        for one in shared:
            serve(first, one)
        drain(first)
    computed, fetched, found, identical = [], [], 0, True
    with engine(model, tiers) as second:
        serve(second, prompt(9999, tokens))  # warms everything up
        for one, other, says in zip(shared, fresh, expected, strict=True):
            computed.append(serve(second, other)[0])
            seconds, out, hits = serve(second, one)
            fetched.append(seconds)
            found += hits
            identical &= out == says
        drain(second)
    return Row(
        tier=name,
        computed_ms=round(1000 * statistics.median(computed), 1),
        fetched_ms=round(1000 * statistics.median(fetched), 1),
        hit=round(found / (prompts * tokens), 3),
        identical=identical,
    )


@contextmanager
def server(folder: Path) -> Iterator[str | None]:
    """Start a server at a Unix socket; yield its URL, or None where there is no such program."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        yield None
        return
    socket = folder / "socket"
    command = [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)  # noqa: S603
    try:
        while not socket.exists():
            time.sleep(0.01)
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--small", action="store_true", help="a quick run that only shows that it works")
    args = parser.parse_args()
    prompts, tokens, shape = (2, 300, MODEL_SMALL) if args.small else (9, 1000, MODEL)
    rows = []
    with tempfile.TemporaryDirectory() as path:
        model = write_llama(Path(path) / "model", shape)
        disk = Path(path) / "disk"
        disk.mkdir()
        tiers: list[dict[str, object]] = [{"type": "disk", "path": str(disk), "size": "1GiB"}]
        rows.append(measure("disk", model, tiers, prompts, tokens))
        with server(Path(path)) as url:
            if url is None:
                print("no valkey-server or redis-server here: left out")
            else:
                rows.append(measure("valkey", model, [{"type": "valkey", "url": url}], prompts, tokens))
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    print("first token, ms   computed   fetched   share   tokens found   outputs")
    for row in rows:
        share = row.fetched_ms / row.computed_ms
        same = "identical" if row.identical else "DIFFERENT"
        print(f"{row.tier:15} {row.computed_ms:10.1f} {row.fetched_ms:9.1f} {share:7.2f} {row.hit:14.1%}   {same}")


if __name__ == "__main__":
    main()
