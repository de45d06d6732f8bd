"""Run prompts on an engine with two ranks and print what came of it as JSON. Run as a program of its own.

python -m tests.vllm.two_ranks MODEL [fail-rank-1]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


def main() -> None:
    from tests.vllm.fixtures import PROMPTS  # noqa: PLC0415 (the environment has to be set first)
    from tests.vllm.llm import engine  # noqa: PLC0415

    model, *flags = sys.argv[1:]
    prompts = PROMPTS[:6]
    config = {
        "kv_connector": "KVTideConnector",
        "kv_connector_module_path": "tests.vllm.half_broken" if flags else "kvtide.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "16MiB"},
    }
    with engine(Path(model), "eager", tensor_parallel_size=2, kv_transfer_config=config) as offloading:
        first = offloading.generate(*prompts)
        offloading.forget_device()
        again = offloading.generate(*prompts)
        offloading.check_at_rest()
        said = {
            "first": [[result.tokens, result.logprobs] for result in first],
            "again": [[result.tokens, result.logprobs] for result in again],
            "cached": [result.cached_tokens for result in again],
            "loaded_tokens": offloading.metrics.loaded_tokens,
            "loads_failed": offloading.metrics.loads_failed,
            "ranks": offloading.side.config.geometry.ranks,
        }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
