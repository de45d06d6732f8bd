"""Real vLLM engines on small random models, one at a time, in this process."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory

BLOCK_TOKENS = 32
MAX_TOKENS = 768
REST_S = 60.0
TOLERANCE = 1e-3
"""Logprobs of a correct run differ by less than 1e-5, those of one with a wrong block by more than 1."""


def prompt(seed: int, length: int) -> list[int]:
    """Return a prompt. The same seed gives the same beginning."""
    draw = random.Random(seed)
    return [draw.randrange(3, 512) for _ in range(length)]


@dataclass(frozen=True)
class Result:
    """What a request generated."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int

    def same_as(self, other: Result) -> bool:
        """Whether the model has said the same with the same confidence."""
        return self.tokens == other.tokens and all(
            abs(mine - theirs) < TOLERANCE for mine, theirs in zip(self.logprobs, other.logprobs, strict=True)
        )


def params(max_tokens: int) -> SamplingParams:
    """Greedy, with logprobs."""
    return SamplingParams(max_tokens=max_tokens, temperature=0, logprobs=1, detokenize=False, ignore_eos=True)


def as_result(output: Any) -> Result:
    """Read a request's output."""
    completion = output.outputs[0]
    tokens = tuple(completion.token_ids)
    logprobs = tuple(step[token].logprob for token, step in zip(tokens, completion.logprobs, strict=True))
    return Result(tokens, logprobs, output.num_cached_tokens)


def say(llm: LLM, *prompts: Sequence[int], max_tokens: int = 4) -> list[Result]:
    """Run prompts to their end, all at a time."""
    inputs = [{"prompt_token_ids": list(tokens)} for tokens in prompts]
    return [as_result(output) for output in llm.generate(inputs, params(max_tokens), use_tqdm=False)]


class Engine:
    """An engine and what tests want to see of it."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.core = llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.free_at_start = self.pool.get_num_free_blocks()
        self._number = 0

    @property
    def side(self) -> Any:
        """The connector's scheduler side."""
        return self.scheduler.connector._scheduler

    @property
    def manager(self) -> Any:
        """The core."""
        return self.side.manager

    @property
    def metrics(self) -> Any:
        """The core's counters."""
        return self.manager.metrics

    def generate(self, *prompts: Sequence[int], max_tokens: int = 4, together: bool = False) -> list[Result]:
        """Run prompts to their end, one after the other or all at a time."""
        batches = [list(prompts)] if together else [[one] for one in prompts]
        results = []
        for batch in batches:
            results += say(self.llm, *batch, max_tokens=max_tokens)
        return results

    def add(self, tokens: Sequence[int], max_tokens: int = 4) -> str:
        """Add a request without running it; return its id."""
        self._number += 1
        name = f"added-{self._number}"
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": list(tokens)}, params(max_tokens))
        return name

    def step(self) -> list[Any]:
        """Run one step; return the outputs of requests that finished in it."""
        return [output for output in self.llm.llm_engine.step() if output.finished]

    def drain(self) -> list[Any]:
        """Step until the engine would go to sleep. It may wait for threads and stores that a busy machine holds up."""
        finished: list[Any] = []
        end_s = time.monotonic() + REST_S
        while self.scheduler.has_requests():
            assert time.monotonic() < end_s, "the engine does not come to rest"
            finished += self.step()
        return finished

    def forget_device(self) -> None:
        """Let vLLM forget its prefix cache, so that hits come from the host."""
        self.drain()
        assert type(self.pool).reset_prefix_cache(self.pool)  # not the one that kvtide hears of

    def check_at_rest(self) -> None:
        """No waiting, no running, no pins, free count as at the start."""
        self.drain()
        assert not self.scheduler.requests
        gauges = self.manager.gauges()
        assert (gauges.store_pins, gauges.transfers, gauges.slots_writing, gauges.slots_pinned) == (0, 0, 0, 0)
        assert gauges.slots_free + gauges.slots_cached == gauges.slots
        assert not self.side._requests.known
        assert self.side._device.count_pinned() == 0
        assert self.pool.get_num_free_blocks() == self.free_at_start


def make_llm(model: Path, mode: str | None = "eager", *, blocks: int = 64, **args: Any) -> LLM:
    """Start vLLM with kvtide in `mode` (None: without)."""
    options = {"host": "16MiB", **args.pop("options", {})}
    if mode is not None:
        args.setdefault(
            "kv_transfer_config",
            {
                "kv_connector": "KVTideConnector",
                "kv_connector_module_path": "kvtide.vllm",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"mode": mode, **options},
            },
        )
    return LLM(
        str(model),
        skip_tokenizer_init=True,
        num_gpu_blocks_override=blocks,
        disable_log_stats=False,
        **{
            "enforce_eager": True,
            "dtype": "float32",
            "block_size": BLOCK_TOKENS,
            "max_model_len": MAX_TOKENS,
            "max_num_batched_tokens": 512,
            **args,
        },
    )


@contextmanager
def engine(model: Path, mode: str | None = "eager", *, blocks: int = 64, **args: Any) -> Iterator[Engine]:
    """Start an engine with kvtide in `mode` (None: without), and leave nothing behind."""
    llm = make_llm(model, mode, blocks=blocks, **args)
    started = Engine(llm)
    try:
        yield started
        if mode is not None and started.scheduler.connector is not None:
            started.drain()
    finally:
        llm.llm_engine.engine_core.shutdown()
        del started, llm
        cleanup_dist_env_and_memory()
        gc.collect()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("kvtide")]
    assert left == [], "threads that nobody has ended, of this engine or of what ran before it"
