"""Beside another connector, under vLLM's MultiConnector, on its real scheduler: what counts is not kvtide's alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from tests.vllm import world as world_module
from tests.vllm.engines import Control
from tests.vllm.test_in_flight import FencedEngine, LateWorld
from tests.vllm.test_world import drive
from tests.vllm.world import World, starts_of, text

REMOTE = {"kv_connector": "Remote", "kv_connector_module_path": "tests.vllm.test_beside", "kv_role": "kv_both"}
REMOTE_TOKENS = 96


class Remote(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM has no type information here
    """Offers to load requests called "remote", which never comes to an end, and "now", in the step that it is used."""

    requires_kv_delivery = False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        offers = request.request_id in {"remote", "now"} and not num_computed_tokens
        return (REMOTE_TOKENS, request.request_id == "remote") if offers else (0, False)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return (0,)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        return KVConnectorTransferResults()

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...
    def register_kv_caches(self, kv_caches: Any) -> None: ...


def let_there_be_several(
    monkeypatch: pytest.MonkeyPatch, role: str = "kv_both", others: Sequence[dict[str, str]] = ()
) -> None:
    """Let worlds have a MultiConnector of this role, in which kvtide is the last one."""

    def several(**own: Any) -> KVTransferConfig:
        children = {"connectors": [*others, own]}
        policy = {"kv_load_failure_policy": "recompute"}
        return KVTransferConfig("MultiConnector", kv_role=role, kv_connector_extra_config=children, **policy)

    monkeypatch.setattr(world_module, "KVTransferConfig", several)
    for half in ("_worker", "_scheduler"):

        def of_the_last(self: Any, half: str = half) -> Any:
            return getattr(self._connectors[-1], half)

        monkeypatch.setattr(MultiConnector, half, property(of_the_last), raising=False)


def test_f8_what_another_connector_has_not_loaded_yet_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM counts tokens as computed when it has allocated their blocks."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = World(tmp_path, monkeypatch=monkeypatch)
    world.generate("else", text(9, 200))
    world.evict_device()
    world.add("remote", text(1, 100))
    world.step()
    stored = world.manager.metrics.stored_blocks
    assert stored > 0
    world.abort("remote")
    for _ in range(3):
        world.step()
    assert world.manager.metrics.stored_blocks == stored


class LoadsInAStep(World):
    """What another connector loads for a request "now" is there when a step reads it."""

    def _forward(self, step: Any) -> dict[str, list[int]]:
        if starts_of(step).get("now") == REMOTE_TOKENS:
            self._write("now", 0, 0, REMOTE_TOKENS)
        return super()._forward(step)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_f8_what_another_connector_loads_in_a_step_is_stored_when_its_request_has_come_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """Until then vLLM may still hear that it was not loaded."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = LoadsInAStep(tmp_path, monkeypatch=monkeypatch, asynchronous=asynchronous)

    def begin() -> None:
        world.add("now", text(1, 160), 20)
        for _ in range(8):
            world.step()
        assert world.manager.metrics.stored_blocks == 0

    begin()
    world.abort("now")
    world.run()
    assert world.manager.metrics.stored_blocks == 0
    world.evict_device()
    begin()
    world.run()
    assert world.manager.metrics.stored_blocks == 11
    world.check_at_rest()
    world.evict_device()
    assert world.generate("again", text(1, 160)) == 144


@pytest.mark.parametrize("role", ["kv_both", "kv_producer"])
def test_f7_whether_vllm_keeps_blocks_back_depends_on_the_role_of_all_connectors_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A producer frees at once: then loads have to wait for the step in flight, though kvtide's own role says both."""
    let_there_be_several(monkeypatch, role)
    control = Control(FencedEngine)
    control.setup["random"] = random.Random(0)
    world = LateWorld(tmp_path, monkeypatch, control=control, blocks=40, host_blocks=60)
    assert world.side._frees_deferred == (role == "kv_both")
    drive(world, 0, steps=600)
    world.check_at_rest()
    assert world.manager.metrics.loaded_tokens > 0
