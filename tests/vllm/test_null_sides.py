"""Halves of a connector that have nothing to do answer everything vLLM asks, in its order, with nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput

from kvtide.core import Plan
from kvtide.vllm import null_sides
from kvtide.vllm.connector import KVTideConnector
from kvtide.vllm.log import logger
from kvtide.vllm.step_messages import StepMetadata
from kvtide.vllm.worker_side import WorkerSide
from tests.vllm.world import BLOCK_TOKENS, World, text


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch=monkeypatch)


def make(world: World, role: KVConnectorRole, *, prefix_caching: bool = True) -> KVTideConnector:
    world.config.cache_config.enable_prefix_caching = prefix_caching
    return KVTideConnector(world.config, role, world.kv_cache_config)


def check_schedules_nothing(world: World, connector: KVTideConnector) -> None:
    request = world.add("a", text(1, 3 * BLOCK_TOKENS))
    connector.on_new_request(request)
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    assert connector.get_loaded_kv_cache_group_ids(request) == ()
    connector.update_state_after_alloc(request, None, 0)
    metadata = connector.build_connector_meta(SchedulerOutput.make_empty())
    assert (metadata.plan, metadata.slots, metadata.announce) == (Plan(step=0), 0, {})
    connector.update_connector_output(KVConnectorOutput())
    assert not connector.has_pending_push_work()
    assert not connector.has_pending_block_frees()
    assert not connector.take_events()
    assert connector.request_finished(request, [1, 2, 3]) == (False, None)
    assert connector.get_kv_connector_stats() is None
    assert connector.reset_cache() is True


def check_copies_nothing(connector: KVTideConnector) -> None:
    connector.bind_connector_metadata(StepMetadata(Plan(step=1), slots=4, timed=1))
    connector.wait_for_save()
    assert connector.get_finished(set()) == (None, None)
    results = connector.get_transfer_results(set())
    assert (results.finished_recving, results.failed_recving) == (set(), set())
    assert connector.get_block_ids_with_load_errors() == set()
    assert connector.build_connector_worker_meta() is None
    assert connector.get_kv_connector_stats() is None
    assert connector.settle(0.0), "nothing stands in the way of sleep"
    connector.clear_connector_metadata()


@pytest.mark.parametrize("role", KVConnectorRole)
def test_without_prefix_caching_neither_half_does_anything(world: World, role: KVConnectorRole) -> None:
    connector = make(world, role, prefix_caching=False)
    connector.bind_kv_cache_manager(world.scheduler.kv_cache_manager)
    connector.register_kv_caches({"layer": object()})
    check_schedules_nothing(world, connector)
    check_copies_nothing(connector)
    connector.shutdown()


def test_a_scheduler_half_does_nothing_before_it_is_bound_and_says_nothing_if_it_never_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(logger, "info", lambda message, *args: said.append(message % args))
    connector = make(world, KVConnectorRole.SCHEDULER)
    check_schedules_nothing(world, connector)
    said.clear()
    connector.shutdown()
    assert said == [], "the engine failed to start"
    connector.bind_kv_cache_manager(world.scheduler.kv_cache_manager)
    assert connector.get_loaded_kv_cache_group_ids(None) == (0,)
    connector.shutdown()
    assert "0 requests" in said[0]


def test_a_worker_half_does_nothing_before_it_has_kv_tensors_and_after_its_end(world: World) -> None:
    check_copies_nothing(make(world, KVConnectorRole.WORKER))
    [worker] = world.workers
    worker.register_kv_caches({})
    assert isinstance(worker._worker, WorkerSide)
    worker.shutdown()
    check_copies_nothing(worker)


def test_a_step_of_a_scheduler_half_that_does_nothing_leaves_a_worker_as_it_is(world: World) -> None:
    [worker] = world.workers
    side = worker._worker
    assert isinstance(side, WorkerSide)
    arena = side._arena
    worker.bind_connector_metadata(null_sides.NOTHING)
    worker.clear_connector_metadata()
    assert side._arena is arena
