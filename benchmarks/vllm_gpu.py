"""A whole vLLM server with and without offloading: how long does a document wait that was seen before.

    python benchmarks/vllm_gpu.py [--kv-heads 8] [--modes none,kvtide-eager] [--json] [--small]

Documents of 16,000 tokens are visited in turn; the device cache holds four of the twelve, the host tier all of them.
Llama-3.1-8B's shape with random weights. Each mode runs in a fresh process. What is measured:

- first visit, revisit: TTFT of one document at a time, median
- all at once: seconds until all documents, asked together, have answered with 32 tokens each
- no reuse: the same with documents that nobody has seen
- start: seconds until the engine can take requests

The last column of a revisit is its ratio to the limit: what it takes with everything in the device cache, and one
large pinned copy of the document's KV. Outputs are compared with those of the run without offloading.
`--small` is a tiny model for vLLM's CPU build: it shows that everything runs, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 16
CONNECTORS: dict[str, dict[str, Any]] = {
    "none": {},
    "simple-eager": {"kv_connector": "SimpleCPUOffloadConnector", "options": {"lazy_offload": False}},
    "simple-lazy": {"kv_connector": "SimpleCPUOffloadConnector", "options": {"lazy_offload": True}},
    "offloading": {"kv_connector": "OffloadingConnector", "options": {}},
    "kvtide-eager": {"kv_connector": "KVTideConnector", "options": {"mode": "eager"}},
    "kvtide-lazy": {"kv_connector": "KVTideConnector", "options": {"mode": "lazy"}},
    "device-cache": {},
}


@dataclass(frozen=True)
class Scale:
    """Sizes of model and workload."""

    documents: int = 12
    document_tokens: int = 16_000
    device_tokens: int = 65_536
    host_bytes: int = 40 << 30
    hidden: int = 4096
    mlp: int = 14_336
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    vocab: int = 128_256
    dtype: str = "bfloat16"

    @property
    def document_bytes(self) -> int:
        """Bytes of the KV of one document."""
        return self.document_tokens * self.layers * 2 * self.kv_heads * (self.hidden // self.heads) * 2


SMALL = Scale(
    documents=4,
    document_tokens=256,
    device_tokens=640,
    host_bytes=64 << 20,
    hidden=256,
    mlp=256,
    layers=2,
    heads=4,
    kv_heads=2,
    vocab=512,
)


@dataclass
class Result:
    """What one mode did."""

    mode: str
    start_s: float
    first_ms: float
    revisit_ms: float
    at_once_s: float
    no_reuse_s: float
    outputs: list[list[int]] = field(default_factory=list)


# ---------------------------------------------------------------------- one mode, in a process of its own


def write_model(scale: Scale, folder: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": scale.hidden,
        "intermediate_size": scale.mlp,
        "num_hidden_layers": scale.layers,
        "num_attention_heads": scale.heads,
        "num_key_value_heads": scale.kv_heads,
        "head_dim": scale.hidden // scale.heads,
        "vocab_size": scale.vocab,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": scale.dtype,
    }
    (folder / "config.json").write_text(json.dumps(config))


def randomise(worker: Any) -> None:
    """Give the model weights whose output depends on the KV; vLLM's dummy weights are next to zero."""
    import torch  # noqa: PLC0415 (only in the processes that run vLLM)

    model = worker.model_runner.model
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(0)
    for _, parameter in sorted(model.named_parameters()):
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.02, generator=generator)


def make_engine(mode: str, scale: Scale, folder: Path) -> Any:
    from vllm import LLM  # noqa: PLC0415 (takes seconds)

    tokens = scale.device_tokens if mode != "device-cache" else scale.documents * (scale.document_tokens + 64)
    arguments: dict[str, Any] = {}
    connector = CONNECTORS[mode]
    if connector:
        key = "host" if connector["kv_connector"] == "KVTideConnector" else "cpu_bytes_to_use"
        arguments["kv_transfer_config"] = {
            "kv_connector": connector["kv_connector"],
            "kv_role": "kv_both",
            "kv_connector_extra_config": {key: scale.host_bytes, **connector["options"]},
        }
        if connector["kv_connector"] == "KVTideConnector":
            arguments["kv_transfer_config"]["kv_connector_module_path"] = "kvtide.vllm"
    return LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=scale.dtype,
        block_size=BLOCK_TOKENS if scale is not SMALL else 32,
        max_model_len=scale.document_tokens + 64,
        max_num_batched_tokens=16_384,
        max_num_seqs=64,
        num_gpu_blocks_override=tokens // (BLOCK_TOKENS if scale is not SMALL else 32) + 1,
        enable_prefix_caching=True,
        disable_log_stats=True,
        **arguments,
    )


def documents(scale: Scale, seed: int) -> list[list[int]]:
    import random  # noqa: PLC0415 (only here)

    draw = random.Random(seed)  # noqa: S311 (not for secrets)
    return [[draw.randrange(2, scale.vocab) for _ in range(scale.document_tokens)] for _ in range(scale.documents)]


class Visitor:
    """Asks an engine about documents, and remembers all answers."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.outputs: list[list[int]] = []

    def ask(self, prompts: list[list[int]], max_tokens: int) -> float:
        """Return the seconds until all prompts were answered."""
        from vllm import SamplingParams  # noqa: PLC0415 (takes seconds)

        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        begin_s = time.perf_counter()
        answers = self._engine.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        spent_s = time.perf_counter() - begin_s
        self.outputs += [list(answer.outputs[0].token_ids) for answer in answers]
        return spent_s

    def one_by_one_ms(self, prompts: list[list[int]]) -> list[float]:
        """Return the TTFT of each prompt, asked alone."""
        return [self.ask([prompt], 1) * 1e3 for prompt in prompts]


def run_mode(mode: str, scale: Scale) -> Result:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with tempfile.TemporaryDirectory() as folder:
        write_model(scale, Path(folder))
        begin_s = time.perf_counter()
        engine = make_engine(mode, scale, Path(folder))
        start_s = time.perf_counter() - begin_s
    engine.collective_rpc(randomise)
    visitor = Visitor(engine)
    visitor.ask([documents(scale, seed=99)[0]], 1)  # what compiles on first use
    known = documents(scale, seed=1)
    first_ms = visitor.one_by_one_ms(known)
    revisit_ms = visitor.one_by_one_ms(known) + visitor.one_by_one_ms(known)
    at_once_s = visitor.ask(known, 32)
    no_reuse_s = visitor.ask(documents(scale, seed=2), 32)
    median = statistics.median
    return Result(mode, start_s, median(first_ms), median(revisit_ms), at_once_s, no_reuse_s, visitor.outputs)


def copy_gbps() -> float:
    """Return GB/s of one large pinned copy to the GPU; 0 without one."""
    import torch  # noqa: PLC0415 (only in the processes that need it)

    if not torch.cuda.is_available():
        return 0.0
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        rates.append((1 << 30) / (time.perf_counter() - begin_s) / 1e9)
    return statistics.median(rates)


# ---------------------------------------------------------------------- all modes


def in_fresh_process(arguments: argparse.Namespace, mode: str) -> Any:
    """Run one mode of this file in a process of its own; return what it found, or None with a word to stderr."""
    with tempfile.NamedTemporaryFile(suffix=".json") as answer:
        command = [sys.executable, __file__, "--run", mode, "--answer", answer.name]
        command += ["--kv-heads", str(arguments.kv_heads), *(["--small"] if arguments.small else [])]
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        print(f"==> {mode}", file=sys.stderr, flush=True)
        ended = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)  # noqa: S603
        text = Path(answer.name).read_text()
        if ended.returncode or not text:
            print(f"==> {mode} failed with exit code {ended.returncode}", file=sys.stderr)
            return None
        return json.loads(text)


def table(results: list[Result], limit_ms: float) -> str:
    reference = results[0].outputs
    lines = [
        f"{'':14}{'first ms':>10}{'revisit ms':>12}{'of limit':>10}{'at once s':>11}{'no reuse s':>12}{'start s':>9}"
        f"{'same output':>13}"
    ]
    for result in results:
        ratio = f"{result.revisit_ms / limit_ms:.2f}" if limit_ms else "-"
        lines.append(
            f"{result.mode:14}{result.first_ms:10.0f}{result.revisit_ms:12.1f}{ratio:>10}{result.at_once_s:11.2f}"
            f"{result.no_reuse_s:12.2f}{result.start_s:9.1f}{'yes' if result.outputs == reference else 'NO':>13}"
        )
    return "\n".join(lines)


def compare(arguments: argparse.Namespace, scale: Scale) -> int:
    gbps = in_fresh_process(arguments, "copy")
    answers = [in_fresh_process(arguments, mode) for mode in arguments.modes.split(",")]
    results = [Result(**answer) for answer in answers if answer is not None]
    if not results:
        return 1
    cached = next((result.revisit_ms for result in results if result.mode == "device-cache"), 0.0)
    limit_ms = cached + scale.document_bytes / gbps / 1e6 if gbps and cached else 0.0
    rows = [
        {key: value for key, value in asdict(result).items() if key != "outputs"}
        | {"same_outputs": result.outputs == results[0].outputs}
        for result in results
    ]
    if arguments.json:
        print(json.dumps({"kv_heads": scale.kv_heads, "copy_gbps": gbps, "limit_ms": limit_ms, "rows": rows}))
    else:
        print(f"{scale.kv_heads} KV heads, one large copy {gbps:.1f} GB/s, limit of a revisit {limit_ms:.1f} ms")
        print(table(results, limit_ms))
    complete = len(results) == len(answers) and all(row["same_outputs"] for row in rows)
    return 0 if complete else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kv-heads", type=int, default=8, help="KV heads of the model (default: 8)")
    parser.add_argument("--modes", default=",".join(CONNECTORS), help="which to run (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--small", action="store_true", help="a tiny model, for vLLM's CPU build")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    scale = SMALL if arguments.small else Scale(kv_heads=arguments.kv_heads)
    if arguments.run:
        answer = copy_gbps() if arguments.run == "copy" else asdict(run_mode(arguments.run, scale))
        Path(arguments.answer).write_text(json.dumps(answer))
        return 0
    unknown = set(arguments.modes.split(",")) - CONNECTORS.keys()
    if unknown:
        parser.error(f"--modes: {', '.join(sorted(unknown))}: expected some of {', '.join(CONNECTORS)}")
    return compare(arguments, scale)


if __name__ == "__main__":
    sys.exit(main())
