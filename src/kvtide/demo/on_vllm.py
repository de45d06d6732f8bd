"""The demo on real vLLM: `python -m kvtide.demo.on_vllm [--json]`.

The same conversations as `kvtide demo`, served by vLLM with a small Llama of random weights: with a device pool that
holds everything, with one that is too small, and with kvtide in both modes. Exit code 1 if any output differs.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from kvtide.commands import Arguments, command, flag
from kvtide.demo.compare import REFERENCE, RUNS, Comparison, OnTurn, RunResult, Served, play
from kvtide.demo.progress import shown
from kvtide.demo.report import show
from kvtide.demo.settings import DemoSettings
from kvtide.demo.workload import Conversation, Turn, conversations
from kvtide.engine import Completion

BLOCK_TOKENS = 32
SETTINGS = DemoSettings(block_tokens=BLOCK_TOKENS, device_blocks=96)
SMALL = DemoSettings(
    block_tokens=BLOCK_TOKENS, device_blocks=24, conversations=3, turns=2, prompt_tokens=384, output_tokens=4
)
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # scheduler and worker in this process, to ask them for numbers
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # copies need a core now and then
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiles nothing, so no compiler is needed
}


def run(args: Arguments) -> int:
    """Run the demo."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    settings = SMALL if args.small else SETTINGS
    with tempfile.TemporaryDirectory() as path, shown(Console(stderr=True), settings.total_turns) as on_turn:
        model = _write_model(Path(path), settings)
        said = conversations(settings)
        results = {run: _run(settings, model, run, said, on_turn) for run in RUNS}
    return show(Comparison(settings, results), wants_json=args.json)


def _write_model(path: Path, settings: DemoSettings) -> Path:
    from kvtide.demo.random_model import Shape, write_llama  # noqa: PLC0415 (the environment has to be set first)

    vocab = settings.engine(settings.device_blocks).model.vocab
    return write_llama(
        path,
        Shape(layers=8, hidden=512, heads=8, kv_heads=4, head_size=64, mlp=1536, vocab=max(512, vocab)),
    )


def _run(settings: DemoSettings, model: Path, run: str, said: list[Conversation], on_turn: OnTurn) -> RunResult:
    """Serve the conversations on an engine of its own."""
    on_turn(run, 0)
    with _engine(settings, model, run) as llm:
        result = play(settings, run, said, on_turn, partial(_serve, llm, settings.output_tokens))
        result.prefill_tokens = result.prompt_tokens - result.reused_tokens
        _ask_kvtide(llm, result)
    return result


def _serve(llm: Any, output_tokens: int, turns: list[Turn], prompts: list[list[int]]) -> Served:
    """Step until these turns are over. Tokens found on the device or loaded are one number to vLLM."""
    from vllm import SamplingParams  # noqa: PLC0415

    params = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True, detokenize=False)
    begun_s: dict[str, float] = {}
    first_s: dict[str, float] = {}
    for turn, prompt in zip(turns, prompts, strict=True):
        begun_s[turn.request_id] = time.perf_counter()
        llm.llm_engine.add_request(turn.request_id, {"prompt_token_ids": prompt}, params)
    by_id = {turn.request_id: turn for turn in turns}
    ended: Served = []
    while len(ended) < len(turns):
        for output in llm.llm_engine.step():
            name = output.request_id
            first_s.setdefault(name, time.perf_counter() - begun_s[name])
            if output.finished:
                completion = Completion(
                    request_id=name,
                    tokens=tuple(output.outputs[0].token_ids),
                    ttft_s=first_s[name],
                    prompt_tokens=len(output.prompt_token_ids),
                    device_tokens=output.num_cached_tokens or 0,
                    loaded_tokens=0,
                    finish_reason="length",
                )
                ended.append((by_id[name], completion))
    return ended


def _ask_kvtide(llm: Any, result: RunResult) -> None:
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group  # noqa: PLC0415

    if has_kv_transfer_group():
        connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
        result.loaded_tokens = connector._scheduler.manager.metrics.loaded_tokens
        stats = get_kv_transfer_group()._worker.copy_stats()
        result.copy_s = stats.store.busy_s + stats.load.busy_s
        result.stored_bytes = stats.store.bytes


@contextmanager
def _engine(settings: DemoSettings, model: Path, run: str) -> Iterator[Any]:
    """Start vLLM; warm it up with a prompt that no conversation has."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415
    from vllm.distributed import cleanup_dist_env_and_memory  # noqa: PLC0415

    args: dict[str, Any] = {}
    if run not in (REFERENCE, "none"):
        args["kv_transfer_config"] = {
            "kv_connector": "KVTideConnector",
            "kv_connector_module_path": "kvtide.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": settings.offload(run),
        }
    blocks = settings.unlimited_blocks + 64 if run == REFERENCE else settings.device_blocks + 1
    llm = LLM(
        str(model),
        skip_tokenizer_init=True,
        dtype="float32",
        block_size=settings.block_tokens,
        num_gpu_blocks_override=blocks,
        max_model_len=settings.longest_tokens + settings.block_tokens,
        max_num_seqs=settings.concurrency,
        enforce_eager=True,
        use_tqdm_on_load=False,
        **args,
    )
    try:
        for length in (300, 300):
            warm_up = {"prompt_token_ids": list(range(3, 3 + length))}
            llm.generate([warm_up], SamplingParams(max_tokens=2, detokenize=False), use_tqdm=False)
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


COMMAND = command(
    "python -m kvtide.demo.on_vllm",
    text="""\
The conversations of `kvtide demo` on real vLLM, with a small Llama of random weights: with a device pool that holds
everything, with one that is too small, and with kvtide in both modes. Exit code 1 if any output differs.""",
    examples="  python -m kvtide.demo.on_vllm --small --json",
    params=[flag("--json", "print one JSON object instead of the table"), flag("--small", "a quick run")],
    run=lambda args: sys.exit(run(args)),
)

if __name__ == "__main__":
    COMMAND.main()
