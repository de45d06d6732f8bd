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

from kvtide.copy import Direction, Fence
from kvtide.core import Copy, NotStored
from kvtide.vllm import versions
from tests.vllm import world as world_module
from tests.vllm.engines import Control, ControlledEngine
from tests.vllm.test_in_flight import FencedEngine, LateWorld
from tests.vllm.test_world import drive
from tests.vllm.world import BLOCK_TOKENS, World, full, replayed, starts_of, text

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

    loaded = range(REMOTE_TOKENS)
    begins_at = REMOTE_TOKENS

    def _forward(self, step: Any) -> dict[str, list[int]]:
        if starts_of(step).get("now") == self.begins_at:
            self._write("now", 0, self.loaded.start, self.loaded.stop)
        return super()._forward(step)


class LoadsBefore(World):
    """What another connector loads for a request "remote" is there after the first step, and vLLM hears of it."""

    def _execute(self, step: Any) -> Any:
        output = super()._execute(step)
        if self.steps == 1:
            self._write("remote", 0, 0, REMOTE_TOKENS)
            output.kv_connector_output.finished_recving = {"remote"}
        return output


class StoresAtOnce(ControlledEngine):
    """Stores move when they are submitted: blocks that were filled by an earlier step wait for nothing."""

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        taken = super().submit(direction, copy, after)
        if direction is Direction.STORE:
            self._mover.move(direction, copy)
            self._copied.add(copy.id)
        return taken


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


class NeverLoads(World):
    """What another connector was to load for "now" does not come, and vLLM hears of it when that step is over."""

    failed = False

    def _execute(self, step: Any) -> Any:
        output = super()._execute(step)
        if not self.failed and "now" in starts_of(step):
            self.failed = True
            blocks = self.scheduler.kv_cache_manager.get_block_ids("now")[0]
            output.kv_connector_output.invalid_block_ids = set(blocks[: REMOTE_TOKENS // BLOCK_TOKENS])
        return output

    def _check_reads(self, name: str, group: int, first: int, last: int) -> None:
        """Look at nothing: what is computed in a step that has read what did not come, vLLM gives up."""


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("later", [0, 1])
def test_f8_nor_is_what_others_share_with_a_request_for_which_another_connector_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool, later: int
) -> None:
    """vLLM lets them hit it in the step in which it is loaded. That it has not come is heard when they are told."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    control = Control(StoresAtOnce)
    world = NeverLoads(tmp_path, monkeypatch=monkeypatch, asynchronous=asynchronous, step_tokens=256, control=control)
    world.add("now", text(1, 200), 60)
    for _ in range(later):
        world.step()
    world.add("shares", text(1, 200), 60)
    for _ in range(8):
        world.step()  # which looks at all that is stored
    assert world.failed
    assert world.hits["shares"] >= REMOTE_TOKENS
    assert world.manager.metrics.stored_blocks == 0
    if asynchronous:  # vLLM 0.32 waits for ever for the tokens of the step that it gave up
        world.abort("now", "shares")
    world.run()
    stored = world.manager.metrics.stored_blocks
    assert stored == 0 if asynchronous else stored >= 12
    world.check_at_rest()


def test_f8_nor_is_what_another_connector_loads_where_vllm_computes_the_end_of_a_hit_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSeek V4.1: a request begins before the end of what the device had, whoever has brought the rest."""
    let_there_be_several(monkeypatch, others=[REMOTE])

    def offer(_: Any, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return (64 if request.request_id == "now" and num_computed_tokens == 64 else 0, False)

    monkeypatch.setattr(Remote, "get_num_new_matched_tokens", offer)
    world = LoadsInAStep(tmp_path, monkeypatch=monkeypatch, groups=[full(), replayed(window=80)], step_tokens=256)
    world.loaded, world.begins_at = range(64, 128), 48
    world.generate("first", text(1, 65))
    stored = world.manager.metrics.stored_blocks
    world.add("now", text(1, 160), 40)
    for _ in range(6):
        world.step()
    assert world.hits["now"] == world.begins_at
    assert world.manager.metrics.stored_blocks == stored
    world.run()
    assert world.manager.metrics.stored_blocks > stored


def test_f4_what_another_connector_was_to_load_and_what_was_computed_behind_it_is_counted_when_it_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = LoadsInAStep(tmp_path, monkeypatch=monkeypatch)
    world.add("now", text(1, 160), 20)
    for _ in range(8):
        world.step()
    world.abort("now")
    world.run()
    assert world.manager.metrics.stored_blocks == 0
    assert world.manager.metrics.not_stored == {NotStored.NOT_CERTAIN: 10}


def test_what_another_connector_has_loaded_before_the_step_is_stored_as_what_was_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM has heard how that load ended when the request begins: there is no doubt."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = LoadsBefore(tmp_path, monkeypatch=monkeypatch)
    world.add("remote", text(1, 160), 40)
    for _ in range(12):
        world.step()
    assert world.hits["remote"] == REMOTE_TOKENS
    assert world.manager.metrics.stored_blocks >= 10
    world.abort("remote")
    world.run()
    world.check_at_rest()


def test_f1_alone_no_request_is_doubted_whose_hit_ends_within_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside states vLLM keeps the end of a hit to itself, so the request begins behind what kvtide was told of."""
    world = World(tmp_path, monkeypatch=monkeypatch)
    world.generate("first", text(1, 100))
    asked = versions.others_load(world.pool)
    assert asked, "nobody binds the pool now: it is not known"
    requests = world.side._requests
    assert not requests._others_load
    world.add("second", text(1, 200), 20)
    requests.known["second"].device_tokens -= 1
    for _ in range(8):
        world.step()
    world.abort("second")
    world.run()
    assert world.manager.metrics.stored_blocks == 12


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
