"""A state-space hybrid on vLLM and a GPU: what was loaded says the same as what was computed.

vLLM copies the states of a hit before it asks a connector for anything. Loads of several MB take long enough for that
to come too soon (`kvtide.vllm.versions.reads_before_bind`).

    PYTHONPATH=src python -m pytest tests/gpu/test_states.py -o filterwarnings=default
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtide.demo.random_model import Shape
from tests.gpu.on_vllm import Engine, assert_close, engine, prompt
from tests.vllm.models import write_lfm2

SHAPE = Shape(layers=16, hidden=1024, heads=16, kv_heads=16, head_size=64, mlp=2048, max_tokens=8192)
"""Half of the layers have attention: 64 KiB for a token, 32 MiB for the shortest of the prompts."""
PROMPTS = [prompt(seed, length) for seed, length in enumerate((512, 1000, 1700, 2400, 3300, 4000))]
OTHERS = [prompt(seed, 4000) for seed in range(20, 26)]
ROUNDS = 5
ARGS: dict[str, Any] = {
    "blocks": 1024,
    "max_model_len": 8192,
    "max_num_batched_tokens": 8192,
    "kv_cache_memory_bytes": 8 << 30,
    "gpu_memory_utilization": 0.1,  # others may use the GPU too
    "enable_prefix_caching": True,
    "mamba_cache_mode": "align",
    "options": {"host": "8GiB"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lfm2(tmp_path_factory.mktemp("lfm2"), SHAPE)


def leave_other_bytes(offloading: Engine) -> None:
    """Let others have written to the device blocks, as on a busy server."""
    offloading.forget_device()
    offloading.generate(*OTHERS)
    offloading.forget_device()


@pytest.mark.parametrize("together", [False, True])
def test_f7_states_that_were_loaded_say_what_computed_ones_say(model: Path, together: bool) -> None:
    with engine(model, None, **{name: value for name, value in ARGS.items() if name != "options"}) as plain:
        expected = plain.generate(*PROMPTS)
    with engine(model, **ARGS) as offloading:
        assert_close(offloading.generate(*PROMPTS), expected)
        for _ in range(ROUNDS):
            leave_other_bytes(offloading)
            before = offloading.metrics.loaded_tokens
            found = offloading.generate(*PROMPTS, together=together)
            assert_close(found, expected)
            assert offloading.metrics.loaded_tokens - before > sum(map(len, PROMPTS)) // 2
        offloading.check_at_rest()
