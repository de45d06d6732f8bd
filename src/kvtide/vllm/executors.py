"""Which of vLLM's executors let the scheduler hear every rank. The others are refused at start: no copy would end."""

from __future__ import annotations

from typing import Any

from vllm.v1.executor.abstract import Executor

from kvtide.errors import ConfigError


def refuse_unheard_ranks(vllm_config: Any) -> None:
    """Refuse an executor that does not hand the output of each rank to the scheduler that plans for it.

    With `external_launcher` every process has a scheduler of its own that hears one rank, and all of them have to
    decide the same; but copies end when they end. The older of Ray's executors takes its output from the last
    pipeline stage alone.
    """
    parallel = vllm_config.parallel_config
    if parallel.world_size == 1:
        return
    names = {each.__name__ for each in Executor.get_class(vllm_config).__mro__}
    if "ExecutorWithExternalLauncher" in names:
        raise ConfigError(
            "distributed_executor_backend",
            "external_launcher",
            'one scheduler that hears all ranks: use "mp" or "ray", or one rank for each process, or no kv_connector '
            "(with external_launcher each process would schedule by its own copies, and they would disagree)",
        )
    if "RayDistributedExecutor" in names and parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "distributed_executor_backend",
            "ray",
            "an executor that reports all pipeline stages: set VLLM_USE_RAY_V2_EXECUTOR_BACKEND=1, or use "
            '"mp" or pipeline_parallel_size=1 (RayDistributedExecutor drops what the first stages say)',
        )
