"""What tiers give a second engine: time to first token of prompts that another engine has computed.

    .venv-vllm/bin/python benchmarks/vllm_tiers.py [--json] [--small]
    python benchmarks/vllm_tiers.py --gpu [--kv-heads 8] [--tokens 8000]

Real vLLM, a Llama of random weights, prompts of 1,000 tokens; with --gpu one as large as Llama 3 8B and longer prompts.
A first engine computes some prompts and lets their blocks sink; a second engine, started afterwards, is asked for
these and for as many that nobody has computed, in turn. Shown for a disk (a restart) and for a Valkey or Redis server
on loopback (two servers that share a store), next to an engine without kvtide, whose outputs have to be the same.
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

VOCAB = 512
MODEL = Shape(layers=8, hidden=512, heads=8, kv_heads=4, head_size=64, mlp=1536, vocab=VOCAB)
LARGE = Shape(layers=32, hidden=4096, heads=32, head_size=128, mlp=14_336, vocab=VOCAB)


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    prompts: int = 9
    tokens: int = 1000
    shape: Shape = MODEL
    host: str = "256MiB"
    disk: str = "1GiB"
    engine: tuple[tuple[str, object], ...] = (
        ("dtype", "float32"),
        ("block_size", 32),
        ("num_gpu_blocks_override", 512),
        ("max_model_len", 2048),
    )


SMALL = Setting(prompts=2, tokens=300, shape=Shape(vocab=VOCAB))


def on_a_gpu(kv_heads: int, tokens: int) -> Setting:
    shape = Shape(
        layers=32, hidden=4096, heads=32, kv_heads=kv_heads, head_size=128, mlp=14_336, max_tokens=tokens + 64
    )
    engine = (("dtype", "bfloat16"), ("load_format", "dummy"), ("gpu_memory_utilization", 0.17))
    return Setting(7, tokens, shape, "24GiB", "24GiB", engine)


@dataclass
class Row:
    """Medians over prompts."""

    tier: str
    plain_ms: float
    """First token of a prompt on an engine without kvtide."""
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
def engine(setting: Setting, model: Path, tiers: list[dict[str, object]] | None) -> Iterator[Any]:
    args: dict[str, Any] = dict(setting.engine)
    if tiers is not None:
        args["kv_transfer_config"] = {
            "kv_connector": "KVTideConnector",
            "kv_connector_module_path": "kvtide.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host": setting.host, "tiers": tiers},
        }
    llm = LLM(str(model), skip_tokenizer_init=True, enforce_eager=True, **args)
    rest_when_idle(llm)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


def rest_when_idle(llm: Any) -> None:
    """Do as vLLM's own server does after a step without work: sleep for a moment, so that other threads can run."""
    core = llm.llm_engine.engine_core.engine_core
    step = core.step_fn

    def step_and_rest() -> Any:
        outputs, executed = step()
        if not executed and core.scheduler.has_requests():
            time.sleep(0.001)
        return outputs, executed

    core.step_fn = step_and_rest


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


def shared_prompts(setting: Setting) -> list[list[int]]:
    return [prompt(number, setting.tokens) for number in range(setting.prompts)]


@dataclass
class Plain:
    """What an engine without kvtide does."""

    first_ms: float
    outputs: list[tuple[int, ...]]


def measure_plain(setting: Setting, model: Path) -> Plain:
    with engine(setting, model, None) as llm:
        serve(llm, prompt(9999, setting.tokens))  # warms everything up
        served = [serve(llm, one) for one in shared_prompts(setting)]
    return Plain(milliseconds([seconds for seconds, _, _ in served]), [outputs for _, outputs, _ in served])


def measure(setting: Setting, model: Path, plain: Plain, tier: dict[str, object]) -> Row:
    shared = shared_prompts(setting)
    with engine(setting, model, [tier]) as first:
        for one in shared:
            serve(first, one)
        drain(first)
    computed, fetched, found, identical = [], [], 0, True
    with engine(setting, model, [tier]) as second:
        serve(second, prompt(9999, setting.tokens))  # warms everything up
        for number, (one, says) in enumerate(zip(shared, plain.outputs, strict=True)):
            computed.append(serve(second, prompt(1000 + number, setting.tokens))[0])
            seconds, out, hits = serve(second, one)
            fetched.append(seconds)
            found += hits
            identical &= out == says
        drain(second)
    return Row(
        tier=str(tier["type"]),
        plain_ms=plain.first_ms,
        computed_ms=milliseconds(computed),
        fetched_ms=milliseconds(fetched),
        hit=round(found / (setting.prompts * setting.tokens), 3),
        identical=identical,
    )


def milliseconds(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds), 1)


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


def write(setting: Setting, path: Path) -> Path:
    if ("load_format", "dummy") not in setting.engine:
        return write_llama(path, setting.shape)
    path.mkdir()
    family = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    (path / "config.json").write_text(json.dumps(setting.shape.config() | family))
    return path


def run(setting: Setting, folder: Path) -> Iterator[Row]:
    model = write(setting, folder / "model")
    plain = measure_plain(setting, model)
    disk = folder / "disk"
    disk.mkdir()
    yield measure(setting, model, plain, {"type": "disk", "path": str(disk), "size": setting.disk})
    with server(folder) as url:
        if url is None:
            print("no valkey-server or redis-server here: left out")
        else:
            yield measure(setting, model, plain, {"type": "valkey", "url": url})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--small", action="store_true", help="a quick run that only shows that it works")
    parser.add_argument("--gpu", action="store_true", help="a large model, for a CUDA machine")
    parser.add_argument("--kv-heads", type=int, default=8, help="of the large model (default: 8)")
    parser.add_argument("--tokens", type=int, default=8000, help="of a prompt of the large model (default: 8000)")
    args = parser.parse_args()
    setting = on_a_gpu(args.kv_heads, args.tokens) if args.gpu else SMALL if args.small else Setting()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(run(setting, Path(folder)))
    if args.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    print("first token, ms    without   computed   fetched   share   tokens found   outputs")
    for row in rows:
        share = row.fetched_ms / row.computed_ms
        same = "identical" if row.identical else "DIFFERENT"
        times = f"{row.plain_ms:10.1f} {row.computed_ms:10.1f} {row.fetched_ms:9.1f}"
        print(f"{row.tier:15} {times} {share:7.2f} {row.hit:14.1%}   {same}")


if __name__ == "__main__":
    main()
