"""Executors that keep some ranks' words from the scheduler are refused at start, with what to do instead."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.ray_executor import RayDistributedExecutor

from kvtide.errors import ConfigError
from kvtide.vllm import KVTideConnector
from kvtide.vllm.executors import refuse_unheard_ranks
from tests.vllm.sources import source
from tests.vllm.test_versions import VERSIONS
from tests.vllm.world import World


class Derived(RayDistributedExecutor):  # type: ignore[misc]  # vLLM has no type information here
    """Somebody's own."""


class RayExecutorV2(MultiprocExecutor):  # type: ignore[misc]  # vLLM has no type information here
    """Stands for vLLM's, which cannot be imported without Ray."""


def config(backend: Any, *, tensor: int = 1, pipeline: int = 1) -> Any:
    parallel = SimpleNamespace(
        distributed_executor_backend=backend, world_size=tensor * pipeline, pipeline_parallel_size=pipeline
    )
    return SimpleNamespace(parallel_config=parallel)


def test_i8_an_external_launcher_is_refused_with_several_ranks() -> None:
    with pytest.raises(ConfigError, match=r'external_launcher.*use "mp" or "ray"'):
        refuse_unheard_ranks(config("external_launcher", tensor=2))
    refuse_unheard_ranks(config("external_launcher"))


@pytest.mark.parametrize("backend", [RayDistributedExecutor, Derived])
def test_i8_rays_older_executor_is_refused_with_pipeline_stages(backend: type) -> None:
    with pytest.raises(ConfigError, match="VLLM_USE_RAY_V2_EXECUTOR_BACKEND=1"):
        refuse_unheard_ranks(config(backend, pipeline=2))
    refuse_unheard_ranks(config(backend, tensor=2))


def test_i8_ray_is_refused_by_what_its_name_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "0")
    with pytest.raises(ConfigError, match="VLLM_USE_RAY_V2_EXECUTOR_BACKEND=1"):
        refuse_unheard_ranks(config("ray", pipeline=2))


@pytest.mark.parametrize("backend", ["mp", MultiprocExecutor, RayExecutorV2])
def test_executors_that_report_every_rank_are_taken(backend: Any) -> None:
    refuse_unheard_ranks(config(backend, tensor=2, pipeline=2))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_refused_is_what_vllm_has(version: str) -> None:
    """A name that changes, or stages that report since some version, would show here."""
    assert "executor_class = ExecutorWithExternalLauncher" in source(version, "v1/executor/abstract.py")
    assert "class RayDistributedExecutor" in source(version, "v1/executor/ray_executor.py")
    assert "return scheduler_output, grammar_output, output" in source(version, "v1/executor/ray_utils.py")
    assert "class RayExecutorV2(MultiprocExecutor)" in source(version, "v1/executor/ray_executor_v2.py")


@pytest.mark.parametrize("role", [KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER])
def test_i8_no_connector_is_made_for_such_an_executor(tmp_path: Path, role: KVConnectorRole) -> None:
    world = World(tmp_path)
    world.workers[0].shutdown()
    world.config.parallel_config.world_size = 2
    world.config.parallel_config.distributed_executor_backend = "external_launcher"
    with pytest.raises(ConfigError, match="external_launcher"):
        KVTideConnector(world.config, role, world.kv_cache_config)
