"""vLLM's CPU build with kvtide and without: what a follow-up gains, and what kvtide costs where nothing is reused.

    .venv-vllm/bin/python benchmarks/vllm_cpu.py [--json] [--small] [--mode lazy] [--rounds 20]

A small Llama of random weights in two processes, one engine without a connector and one with kvtide. They take turns, a
second or two each on the same prompts, the order alternating; the one that waits does nothing. Ratios are taken within
a round, so that what else runs on the machine hits both; on a busy machine the quickest rounds of each say more.

Follow-up: prompts of 1,000 tokens are served and driven out of the device by others; then each comes again with a few
tokens more. The time to its first token, median of the prompts of a round.
No reuse: prompts that share nothing, all at a time, so that every block is stored for nothing. The time from the first
request to the last token, and until the last block is stored.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",  # compiles nothing, so no compiler is needed
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)

from kvtide.demo.random_model import Shape, write_llama  # noqa: E402 (the environment has to be set first)

BLOCK_TOKENS = 32
VOCAB = 512
FOLLOW_UP_TOKENS = 16


@dataclass(frozen=True)
class Workload:
    """Sizes of a run."""

    layers: int = 8
    prefix_tokens: int = 1_000
    prefixes: int = 2
    """Prompts of a round that come again."""
    fresh: int = 4
    """Prompts of a round that do not."""
    output_tokens: int = 16
    rounds: int = 20

    @property
    def device_blocks(self) -> int:
        """Room for the prompts that run at a time, and a bit."""
        longest = self.prefix_tokens + FOLLOW_UP_TOKENS + self.output_tokens
        return (self.fresh + 1) * (longest // BLOCK_TOKENS + 2)


SMALL = Workload(layers=2, prefix_tokens=200, fresh=2, output_tokens=2, rounds=1)


@dataclass
class Turn:
    """What one engine did in one round."""

    follow_up_ms: float
    no_reuse_s: float
    cached_tokens: int
    """Of a follow-up, at the median."""


@dataclass
class Spread:
    """Median, quartiles, least and most of the rounds."""

    median: float
    lower: float
    upper: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    lower, median, upper = statistics.quantiles([*values, *values], n=4, method="inclusive")
    return Spread(*(round(value, 4) for value in (median, lower, upper, min(values), max(values))))


def prompt(seed: str, length: int) -> list[int]:
    draw = random.Random(seed)  # noqa: S311 (prompts, no secrets)
    return [draw.randrange(3, VOCAB) for _ in range(length)]


class Engine:
    """vLLM, with kvtide in `mode` or without. Made in a process of its own, for vLLM has one engine in each."""

    def __init__(self, model: Path, load: Workload, mode: str | None) -> None:
        from vllm import LLM  # noqa: PLC0415 (only the children need it)

        self._load = load
        args: dict[str, Any] = {}
        if mode is not None:
            args["kv_transfer_config"] = {
                "kv_connector": "KVTideConnector",
                "kv_connector_module_path": "kvtide.vllm",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"host": "1GiB", "mode": mode},
            }
        self._llm = LLM(
            str(model),
            skip_tokenizer_init=True,
            dtype="float32",
            block_size=BLOCK_TOKENS,
            num_gpu_blocks_override=load.device_blocks,
            max_model_len=load.prefix_tokens + FOLLOW_UP_TOKENS + load.output_tokens + BLOCK_TOKENS,
            max_num_seqs=load.fresh,
            enforce_eager=True,
            use_tqdm_on_load=False,
            **args,
        )
        for _ in range(2):
            self._serve([prompt("warm", load.prefix_tokens)], 2)
        self._drain()

    def _serve(self, prompts: Sequence[list[int]], output_tokens: int) -> list[Any]:
        from vllm import SamplingParams  # noqa: PLC0415

        params = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True, detokenize=False)
        outputs: list[Any] = self._llm.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)
        return outputs

    def _drain(self) -> None:
        """Let stores end."""
        scheduler = self._llm.llm_engine.engine_core.engine_core.scheduler
        while scheduler.has_requests():
            self._llm.llm_engine.step()

    def no_reuse_s(self, number: int) -> float:
        fresh = [prompt(f"fresh {number}/{index}", self._load.prefix_tokens) for index in range(self._load.fresh)]
        begin_s = time.perf_counter()
        self._serve(fresh, self._load.output_tokens)
        self._drain()
        return time.perf_counter() - begin_s

    def fill(self, number: int) -> None:
        """Serve the prompts that will come again, and then as many others as the device holds."""
        load = self._load
        for index in range(load.prefixes):
            self._serve([prompt(f"prefix {number}/{index}", load.prefix_tokens)], 1)
        others = load.device_blocks * BLOCK_TOKENS // load.prefix_tokens + 1
        self._serve([prompt(f"other {number}/{index}", load.prefix_tokens) for index in range(others)], 1)
        self._drain()

    def follow_up(self, number: int) -> tuple[float, int]:
        """Return milliseconds to the first token, and how many tokens were cached: medians."""
        ttft_ms, cached = [], []
        for index in range(self._load.prefixes):
            again = prompt(f"prefix {number}/{index}", self._load.prefix_tokens)
            again += prompt(f"more {number}/{index}", FOLLOW_UP_TOKENS)
            begin_s = time.perf_counter()
            [output] = self._serve([again], 1)
            ttft_ms.append((time.perf_counter() - begin_s) * 1e3)
            cached.append(output.num_cached_tokens)
        self._drain()
        return statistics.median(ttft_ms), int(statistics.median(cached))

    def shutdown(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()


def child(pipe: Any, model: Path, load: Workload, mode: str | None) -> None:
    """Run an engine in this process, and do what the other end of the pipe says."""
    engine = Engine(model, load, mode)
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        name, number = asked
        pipe.send(getattr(engine, name)(number))
    engine.shutdown()


class Remote:
    """An engine in another process."""

    def __init__(self, model: Path, load: Workload, mode: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=child, args=(theirs, model, load, mode), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def ask(self, name: str, number: int) -> Any:
        self._pipe.send((name, number))
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(60)


def measure(load: Workload, mode: str) -> dict[str, Any]:
    """Let two engines take turns, and compare them round by round."""
    with tempfile.TemporaryDirectory() as path:
        shape = Shape(layers=load.layers, hidden=512, heads=8, kv_heads=4, head_size=64, mlp=1536, vocab=VOCAB)
        model = write_llama(Path(path), shape)
        engines = {name: Remote(model, load, name or None) for name in ("", mode)}
        turns: dict[str, list[Turn]] = {"": [], mode: []}
        for number in range(load.rounds):
            order = ["", mode] if number % 2 == 0 else [mode, ""]
            no_reuse = {name: engines[name].ask("no_reuse_s", number) for name in order}
            for name in order:
                engines[name].ask("fill", number)
            for name in order:
                ttft_ms, cached = engines[name].ask("follow_up", number)
                turns[name].append(Turn(ttft_ms, no_reuse[name], cached))
            plain, other = turns[""][-1], turns[mode][-1]
            print(
                f"==> round {number + 1}: follow-up {plain.follow_up_ms:.0f} and {other.follow_up_ms:.0f} ms, "
                f"no reuse {plain.no_reuse_s:.2f} and {other.no_reuse_s:.2f} s",
                file=sys.stderr,
            )
        for engine in engines.values():
            engine.close()
    pairs = list(zip(turns[""], turns[mode], strict=True))
    return {
        "mode": mode,
        "prefix_tokens": load.prefix_tokens,
        "rounds": load.rounds,
        "none_follow_up_ms": asdict(spread([plain.follow_up_ms for plain, _ in pairs])),
        "kvtide_follow_up_ms": asdict(spread([other.follow_up_ms for _, other in pairs])),
        "follow_up_times_faster": asdict(spread([plain.follow_up_ms / other.follow_up_ms for plain, other in pairs])),
        "none_no_reuse_s": asdict(spread([plain.no_reuse_s for plain, _ in pairs])),
        "kvtide_no_reuse_s": asdict(spread([other.no_reuse_s for _, other in pairs])),
        "no_reuse_times_slower": asdict(spread([other.no_reuse_s / plain.no_reuse_s for plain, other in pairs])),
        "no_reuse_times_slower_at_best": round(
            min(other.no_reuse_s for _, other in pairs) / min(plain.no_reuse_s for plain, _ in pairs), 4
        ),
        "none_cached_tokens": statistics.median(plain.cached_tokens for plain, _ in pairs),
        "kvtide_cached_tokens": statistics.median(other.cached_tokens for _, other in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--small", action="store_true", help="a quick run that only shows that it works")
    parser.add_argument("--mode", choices=("eager", "lazy"), default="eager")
    parser.add_argument("--rounds", type=int, help="turns of each engine (default: 20)")
    args = parser.parse_args()
    load = SMALL if args.small else Workload(rounds=args.rounds or Workload.rounds)
    found = measure(load, args.mode)
    if args.json:
        print(json.dumps(found))
        return
    print(f"median (quartiles) of {load.rounds} rounds, prefixes of {load.prefix_tokens} tokens, mode {args.mode}")
    for name, label in (
        ("none_follow_up_ms", "follow-up, no connector, ms"),
        ("kvtide_follow_up_ms", "follow-up, kvtide, ms"),
        ("follow_up_times_faster", "times faster"),
        ("none_no_reuse_s", "no reuse, no connector, s"),
        ("kvtide_no_reuse_s", "no reuse, kvtide, s"),
        ("no_reuse_times_slower", "times slower"),
    ):
        values = found[name]
        print(f"{label:28} {values['median']:9.3f}   ({values['lower']:.3f} to {values['upper']:.3f})")
    print(f"{'  in the quickest rounds':28} {found['no_reuse_times_slower_at_best']:9.3f}")


if __name__ == "__main__":
    main()
