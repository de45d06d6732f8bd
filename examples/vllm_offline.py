"""kvtide in vLLM without a server: `python examples/vllm_offline.py [MODEL]`, in an environment that has vLLM.

Without a model it writes a small one of random weights. Prompts are token ids, so no tokenizer is needed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; the CPU build asks for it

from vllm import LLM, SamplingParams

TOKENS = 320
PROMPTS = [[(7 * number + 13 * at) % 400 + 3 for at in range(TOKENS)] for number in range(8)]


def main(model: str) -> None:
    """Ask for more prompts than the device holds, then for the first one again."""
    llm = LLM(
        model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=32,
        max_model_len=512,
        num_gpu_blocks_override=48,  # so small that old prompts are evicted
        kv_transfer_config={
            "kv_connector": "KVTideConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host": "256MiB"},
        },
    )
    first, again = ask(llm, PROMPTS)[0], ask(llm, PROMPTS[:1])[0]
    assert list(first.outputs[0].token_ids) == list(again.outputs[0].token_ids)
    print(f"{again.num_cached_tokens} of {TOKENS} prompt tokens were not computed again")


def ask(llm: LLM, prompts: list[list[int]]) -> Any:
    """Generate four tokens for each prompt."""
    sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    return llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from kvtide.demo.random_model import Shape, write_llama

        with tempfile.TemporaryDirectory() as folder:
            main(str(write_llama(Path(folder), Shape())))
