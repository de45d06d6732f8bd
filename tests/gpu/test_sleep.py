"""Sleep on a GPU gives the memory of the KV cache back: no copy is in it by then, and nothing old is served after it.

PYTHONPATH=src python -m pytest tests/gpu/test_sleep.py -o filterwarnings=default
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtide.demo.random_model import Shape, write_llama
from tests.gpu.on_vllm import assert_close, engine, prompt

SHAPE = Shape(layers=8, hidden=1024, heads=16, kv_heads=16, head_size=64, mlp=2048, max_tokens=8192)
PROMPTS = [prompt(seed, length) for seed, length in enumerate((1000, 2400, 4000))]
ARGS: dict[str, Any] = {
    "blocks": 1024,
    "max_model_len": 8192,
    "max_num_batched_tokens": 8192,
    "kv_cache_memory_bytes": 8 << 30,
    "gpu_memory_utilization": 0.1,  # others may use the GPU too
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"), SHAPE)


def test_f9_an_engine_that_slept_while_it_stored_says_what_a_fresh_one_says(model: Path) -> None:
    with engine(model, None, **ARGS) as plain:
        expected = plain.generate(*PROMPTS)
    # One such engine in a process is all that vLLM allows.
    with engine(model, **ARGS, enable_sleep_mode=True, options={"host": "4GiB"}) as offloading:
        for level in (1, 2, 1, 2):
            before = offloading.metrics.loaded_tokens
            assert_close(offloading.generate(*PROMPTS), expected)
            assert offloading.metrics.loaded_tokens == before, "nothing that was stored before it slept"
            offloading.llm.sleep(level=level)  # the last blocks are being stored
            offloading.llm.wake_up()
            if level == 2:
                offloading.llm.collective_rpc("reload_weights")
        assert_close(offloading.generate(*PROMPTS), expected)
        offloading.forget_device()
        assert_close(offloading.generate(*PROMPTS), expected)
        assert offloading.metrics.loaded_tokens > sum(map(len, PROMPTS)) // 2, "and it stores and loads again"
        offloading.check_at_rest()
