"""Run prompts on an engine with two ranks and print what came of it as JSON. Run as a program of its own.

python -m tests.vllm.two_ranks MODEL FILE

Three times: computed, loaded, and, while FILE exists, with loads that fail on rank 1.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


def main() -> None:
    model, file = sys.argv[1:]
    os.environ["KVTIDE_TEST_LOADS_FAIL_WHILE"] = file
    from tests.vllm.fixtures import PROMPTS  # noqa: PLC0415 (the environment has to be set first)
    from tests.vllm.llm import engine  # noqa: PLC0415

    config = {
        "kv_connector": "KVTideConnector",
        "kv_connector_module_path": "tests.vllm.half_broken",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "16MiB"},
    }
    said: dict[str, Any] = {}
    with engine(Path(model), "eager", tensor_parallel_size=2, kv_transfer_config=config) as offloading:
        for turn in ("computed", "loaded", "failed"):
            if turn == "failed":
                Path(file).touch()
            before = offloading.metrics.loaded_tokens
            results = offloading.generate(*PROMPTS[:6])
            said[turn] = {
                "results": [[result.tokens, result.logprobs] for result in results],
                "cached": [result.cached_tokens for result in results],
                "loaded_tokens": offloading.metrics.loaded_tokens - before,
                "loads_failed": offloading.metrics.loads_failed,
            }
            offloading.forget_device()
        offloading.check_at_rest()
        said["ranks"] = offloading.side.config.geometry.ranks
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
