"""Small models of every kind of KV that vLLM keeps, with random weights, and how far a wrong block moves what they say.

    PYTHONPATH=src VLLM_ENABLE_V1_MULTIPROCESSING=0 python -m tests.gpu.kinds [KIND...]

prints one line for each kind, on a GPU or on vLLM's CPU build (which does not run all of them).
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from triton.runtime.autotuner import Autotuner
from vllm import SamplingParams
from vllm.model_executor.layers.layernorm import GemmaRMSNorm
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from kvtide.core import Copy, Plan
from kvtide.worker import Worker
from tests.vllm.llm import Engine, engine, prompt

LOGPROBS = 20
Logprobs = dict[int, float]
"""Of the likeliest next tokens."""
FIRST_TURNS = [prompt(seed, 260 + 12 * seed) for seed in range(12)]
"""Few blocks each, so that one of them weighs something."""
FOLLOW_UPS = [[*tokens, *prompt(100 + seed, 90)] for seed, tokens in enumerate(FIRST_TURNS)]


@register_model_loader("kvtide-random")
class RandomLoader(DummyModelLoader):  # type: ignore[misc]  # vLLM has no type information here
    """Makes weights that are large enough for a wrong block to show; vLLM's dummy weights are next to zero."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Fill all parameters: the same numbers in every engine."""
        adding_one = {id(norm.weight) for norm in model.modules() if isinstance(norm, GemmaRMSNorm)}
        for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
            if id(parameter) in adding_one:
                parameter.data.fill_(0.5 if "q_norm" in name or "k_norm" in name else 0.0)
            elif parameter.is_floating_point():
                random = torch.Generator().manual_seed(number)
                parameter.data.copy_(_weights(name, parameter.shape, random))
                if "embed_tokens" in name and "gemma" in model_config.hf_config.model_type:
                    parameter.data.mul_(parameter.shape[1] ** -0.5)  # Gemma multiplies by as much; attention must weigh


def _weights(name: str, shape: Sequence[int], random: torch.Generator) -> torch.Tensor:
    if name.endswith(("A_log", ".A", "dt_bias")):  # states that neither fade at once nor grow
        drawn = torch.rand(shape, generator=random) - (1.0 if name.endswith("dt_bias") else 3.0)
        return -drawn.exp() if name.endswith(".A") else drawn  # vLLM keeps what Mamba 2 makes of its A_log
    if len(shape) <= 1:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    if "embed" in name or "lm_head" in name:
        return torch.randn(shape, generator=random)
    sharper = 2.0 if any(part in name for part in ("q_proj", "qkv_proj", "k_proj", "kv_a_proj")) else 1.0
    return torch.randn(shape, generator=random) * sharper / math.sqrt(math.prod(shape[1:]))


SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@dataclass(frozen=True)
class Kind:
    """A model, and what vLLM is told to run it."""

    config: dict[str, Any]
    arguments: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write what vLLM wants to read of the model."""
        (folder / "config.json").write_text(json.dumps({**SIZES, **self.config}))
        return folder


KINDS = {
    "dense": Kind(LLAMA),
    "dense, CUDA graphs": Kind(
        LLAMA,
        {
            "enforce_eager": False,
            "compilation_config": {"mode": 0, "cudagraph_mode": "FULL", "max_cudagraph_capture_size": 512},
        },
    ),
    "mla": Kind(
        {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 64,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 4,  # no layer has them: experts keep no KV
            "moe_intermediate_size": 512,
        }
    ),
    "sliding": Kind(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_local_base_freq": 10_000.0,
            "query_pre_attn_scalar": 64,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        }
    ),
    "gdn": Kind(
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 128,
            "mlp_only_layers": [0, 1, 2],  # vLLM wants one layer with experts
        },
        # The other one is FlashInfer's, which not everybody has.
        {"mamba_cache_mode": "align", "additional_config": {"gdn_prefill_backend": "triton"}},
    ),
    "mamba2": Kind(
        {
            "architectures": ["FalconH1ForCausalLM"],
            "model_type": "falcon_h1",
            "mamba_d_ssm": 256,
            "mamba_n_heads": 8,
            "mamba_d_head": 32,
            "mamba_d_state": 32,
            "mamba_chunk_size": 64,
        },
        {"mamba_cache_mode": "align"},
    ),
    "fp8": Kind(LLAMA, {"kv_cache_dtype": "fp8"}),
    "mtp": Kind(
        {
            "architectures": ["MiMoForCausalLM"],
            "model_type": "qwen2",  # transformers does not know MiMo, whose configuration is that of Qwen 2
            "num_nextn_predict_layers": 1,
            "head_dim": 32,
        },
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
    ),
}


def _first_that_runs(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Let a Triton kernel take the first of its variants that runs: trying all of them takes minutes for GDN."""

    def bench_one(kernel: Any, *args: Any, **named: Any) -> Any:
        if getattr(kernel, "variant_found_for", None) is kernel.nargs:
            return [math.inf] * 3
        times = bench(kernel, *args, **named)
        if min(times) < math.inf:
            kernel.variant_found_for = kernel.nargs
        return times

    return bench_one


@contextmanager
def running(kind: Kind) -> Iterator[Engine]:
    """Start vLLM with kvtide. The device cache holds less than half of the conversations."""
    with patch.object(Autotuner, "_bench", _first_that_runs(Autotuner._bench)), _running(kind) as started:
        yield started


@contextmanager
def _running(kind: Kind) -> Iterator[Engine]:
    arguments = {"block_size": 64, "dtype": "bfloat16", "kv_cache_memory_bytes": 1 << 30, **kind.arguments}
    arguments["gpu_memory_utilization"] = 0.1  # others may use the GPU too
    with tempfile.TemporaryDirectory() as folder:
        model = kind.write(Path(folder))
        with engine(
            model,
            blocks=40,
            load_format="kvtide-random",
            enable_prefix_caching=True,
            max_model_len=512,
            max_num_batched_tokens=2048,
            options={"host": "512MiB"},
            **arguments,
        ) as started:
            yield started


def say(started: Engine, prompts: Sequence[Sequence[int]], *, together: bool) -> list[Logprobs]:
    """Return the likeliest next tokens of each prompt."""
    params = SamplingParams(max_tokens=2, temperature=0, logprobs=LOGPROBS, detokenize=False, ignore_eos=True)
    inputs = [{"prompt_token_ids": list(tokens)} for tokens in prompts]
    batches = [inputs] if together else [[one] for one in inputs]
    outputs = [output for batch in batches for output in started.llm.generate(batch, params, use_tqdm=False)]
    return [{token: said.logprob for token, said in output.outputs[0].logprobs[0].items()} for output in outputs]


def apart(found: Logprobs, expected: Logprobs) -> float:
    """Return how far two answers are apart: the largest difference among the five tokens that should be likeliest."""
    likeliest = sorted(expected, key=expected.__getitem__)[-5:]
    least = min(found.values())  # what is not among the found ones is less likely than that
    return max(abs(found.get(token, least) - expected[token]) for token in likeliest)


@dataclass(frozen=True)
class Found:
    """What was seen of one kind: how far what was loaded is apart from what was computed."""

    right: float
    """The worst answer, of blocks as they were stored."""
    wrong_first: float
    """The best answer, where the first block of each load is that of another conversation."""
    wrong_last: float
    loaded_tokens: int
    graphs: str
    """Which steps ran as CUDA graphs."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"right blocks {self.right:.3f}, one wrong block {self.wrong_first:.3f} (first) and {self.wrong_last:.3f} "
            f"(last), {self.loaded_tokens} tokens loaded, CUDA graphs: {self.graphs}, {self.seconds:.1f} s"
        )


def examine(kind: Kind) -> Found:
    """Let conversations go on after the device has evicted them, and compare with what is computed."""
    begin_s = time.monotonic()
    with running(kind) as started:
        expected = say(started, FOLLOW_UPS, together=False)
        assert started.metrics.loaded_tokens == 0, "computed, all of it"
        started.drain()
        assert started.llm.reset_prefix_cache()  # kvtide hears of it
        say(started, FIRST_TURNS, together=True)
        right = max(map(apart, say(started, FOLLOW_UPS, together=True), expected))
        wrong = [min(map(apart, _say_wrong(started, at), expected)) for at in (0, -1)]
        before_tokens = started.metrics.loaded_tokens
        started.forget_device()
        right = max(right, *map(apart, say(started, FOLLOW_UPS, together=False), expected))
        loaded_tokens = started.metrics.loaded_tokens - before_tokens
        started.check_at_rest()
        graphs = started.llm.llm_engine.vllm_config.compilation_config.cudagraph_mode.name
    return Found(right, wrong[0], wrong[1], loaded_tokens, graphs, time.monotonic() - begin_s)


def _say_wrong(started: Engine, at: int) -> list[Logprobs]:
    """Load everything, but for one block of each load another one, of the load before. The host stays as it is."""
    answers = []
    with patch.object(Worker, "start", _with_wrong_blocks(Worker.start, at)):
        for tokens in (FOLLOW_UPS[-1], *FOLLOW_UPS):  # the first load has nothing before it, and is right
            started.forget_device()
            answers += say(started, [tokens], together=False)
        started.drain()
    return answers[1:]


def _with_wrong_blocks(start: Callable[..., None], at: int) -> Callable[..., None]:
    before: list[int] = []

    def wrong(worker: Worker, plan: Plan, *rest: Any) -> None:
        loads = []
        for copy in plan.loads:
            slots = list(copy.slots)
            before.append(slots[at])
            slots[at] = before[-2] if len(before) > 1 else slots[at]
            loads.append(_with_slots(copy, tuple(slots)))
        start(worker, replace(plan, loads=tuple(loads)), *rest)

    return wrong


def _with_slots(copy: Copy, slots: tuple[int, ...]) -> Copy:
    return replace(copy, slots=slots)


def main() -> None:
    """Show the kinds that are named, or all."""
    for name in sys.argv[1:] or KINDS:
        print(f"{name}: {examine(KINDS[name])}", flush=True)  # noqa: T201 (a command, to be read)


if __name__ == "__main__":
    main()
