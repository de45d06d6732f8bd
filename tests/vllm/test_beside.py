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
from tests.vllm.world import BLOCK_TOKENS, World, starts_of, text

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
def test_f8_what_another_connector_loads_in_a_step_is_stored_behind_the_first_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """By then vLLM has heard whether it was loaded."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = LoadsInAStep(tmp_path, monkeypatch=monkeypatch, asynchronous=asynchronous)
    request = world.add("now", text(1, 160), 40)
    while not request.num_output_tokens:
        assert world.manager.metrics.stored_blocks == 0
        world.step()
    for _ in range(24):
        world.step()
    assert world.manager.metrics.stored_blocks >= 10, "while it runs"
    world.run()
    world.check_at_rest()
    world.evict_device()
    assert world.generate("again", text(1, 160)) == 144


class NeverLoads(World):
    """What another connector was to load for `these` does not come, and vLLM hears of it when that step is over."""

    these: Sequence[str] = ("now",)
    failed = False

    def _execute(self, step: Any) -> Any:
        output = super()._execute(step)
        if not self.failed and set(self.these) <= set(starts_of(step)):
            self.failed = True
            invalid = [block for name in self.these for block in self._not_loaded(name)]
            output.kv_connector_output.invalid_block_ids = set(invalid)
        return output

    def _not_loaded(self, name: str) -> list[int]:
        found = self.side._requests.known[name].found_tokens
        blocks: list[int] = self.scheduler.kv_cache_manager.get_block_ids(name)[0]
        return blocks[found // BLOCK_TOKENS : (found + REMOTE_TOKENS) // BLOCK_TOKENS]

    def _check_reads(self, name: str, group: int, first: int, last: int) -> None:
        """Look at nothing: what is computed in a step that has read what did not come, vLLM gives up."""


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("later", [0, 1])
def test_f8_nor_is_what_others_share_with_a_request_whose_load_fails(
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
    if asynchronous:  # vLLM 0.32 waits for ever for the tokens of the step that it gave up
        world.abort("now", "shares")
    world.run()
    assert world.manager.metrics.stored_blocks == 0
    assert world.generate("again", text(1, 200)) == 0, "nobody finds it on the device either"
    assert world.manager.metrics.stored_blocks == 12
    world.check_at_rest()


def test_i8_tokens_that_were_given_up_are_not_counted_as_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM forgets those that it has not heard of yet, and ends a request by a token that is worth nothing."""
    let_there_be_several(monkeypatch, others=[REMOTE])

    def offer(_: Any, request: Any, device_tokens: int) -> tuple[int, bool]:
        return (REMOTE_TOKENS if request.request_id in {"first", "now"} else 0, False)

    monkeypatch.setattr(Remote, "get_num_new_matched_tokens", offer)
    world = NeverLoads(tmp_path, monkeypatch=monkeypatch, asynchronous=True, step_tokens=208, blocks=64)
    world.these = ("first", "now")
    prompt = text(1, 194)
    worthless = world._next_token([*prompt, world._next_token(prompt)])
    world.add("first", text(3, 206), 30)  # takes all of the step in which it is computed again
    world.add("now", prompt, 60, stop_token_ids=[worthless])
    for _ in range(8):
        world.step()
    assert world.failed
    assert "now" in world.done
    world.abort("first")
    world.run()
    assert world.generate("again", prompt) == 0, "nobody hits what was never computed"
    world.check_at_rest()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_f8_nobody_finds_the_blocks_of_a_request_that_ends_before_it_is_known_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, asynchronous: bool
) -> None:
    """vLLM leaves them their keys, for they were to be computed again."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = NeverLoads(tmp_path, monkeypatch=monkeypatch, asynchronous=asynchronous, step_tokens=256, mode=mode)
    world.add("now", text(1, 200), 60)
    world.step()
    world.abort("now")
    for _ in range(3):
        world.step()
    assert world.failed
    assert world.generate("again", text(1, 200), 20) == 0
    world.generate("other", text(2, 250))  # lazy mode stores what is about to be evicted
    assert world.manager.metrics.stored_blocks >= 12
    world.check_at_rest()


def test_f8_nor_of_one_that_is_preempted_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hit them itself when it is resumed."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    offers = iter([REMOTE_TOKENS])

    def offer_once(_: Any, request: Any, device_tokens: int) -> tuple[int, bool]:
        return next(offers, 0) if request.request_id == "now" else 0, False

    monkeypatch.setattr(Remote, "get_num_new_matched_tokens", offer_once)
    world = NeverLoads(tmp_path, monkeypatch=monkeypatch, step_tokens=256, blocks=24)
    world.add("grows", text(5, 159), 4)
    world.step()
    request = world.add("now", text(1, 200), 20)
    world.run()  # which looks at all that is stored
    assert world.failed
    assert request.num_preemptions == 1
    assert world.manager.metrics.not_stored[NotStored.NOT_CERTAIN] > 0
    world.check_at_rest()


def test_f8_what_waits_to_be_stored_does_not_find_blocks_in_doubt_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_there_be_several(monkeypatch, others=[REMOTE])

    def offer(_: Any, request: Any, device_tokens: int) -> tuple[int, bool]:
        return (REMOTE_TOKENS if request.request_id == "now" and device_tokens <= 96 else 0, False)

    monkeypatch.setattr(Remote, "get_num_new_matched_tokens", offer)
    control = Control(StoresAtOnce)
    sizes: dict[str, Any] = {"step_tokens": 256, "blocks": 18, "pin_budget": 4}
    world = NeverLoads(tmp_path, monkeypatch=monkeypatch, control=control, **sizes)
    control.engine.held = {Direction.STORE}
    world.add("before", text(1, 161), 1)
    for _ in range(3):
        world.step()
    world.add("else", text(2, 200), 1)  # takes blocks of the first one that wait for the pin budget
    for _ in range(3):
        world.step()
    assert world.manager.gauges().backlog_blocks
    control.engine.held = set()
    world.step()  # behind it the budget is free again
    world.add("now", text(1, 200), 40)
    for _ in range(6):
        world.step()  # which looks at all that is stored
    assert world.failed


def test_f8_doubt_ends_with_the_first_token_and_does_not_spread_over_a_common_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed long before is in nobody's doubt, though a request that shares it has more loaded for it."""
    let_there_be_several(monkeypatch, others=[REMOTE])

    def offer(_: Any, request: Any, device_tokens: int) -> tuple[int, bool]:
        return (64 if request.request_id == "now" and device_tokens == 64 else 0, False)

    monkeypatch.setattr(Remote, "get_num_new_matched_tokens", offer)
    world = LoadsInAStep(tmp_path, monkeypatch=monkeypatch, step_tokens=256, blocks=128)
    world.loaded, world.begins_at = range(64, 128), 128
    world.generate("before", [*text(7, 64), 5])
    world.add("now", text(7, 64) + text(1, 100), 20)
    world.add("other", text(7, 64) + text(2, 100), 20)
    world.scheduler.schedule()
    known = world.side._requests.known
    assert (known["now"].doubtful, known["other"].doubtful) == (True, False)


def test_f4_what_another_connector_was_to_load_and_what_was_computed_behind_it_is_counted_when_it_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = LoadsInAStep(tmp_path, monkeypatch=monkeypatch, asynchronous=True)
    world.add("now", text(1, 160), 20)
    world.step()
    world.abort("now")
    world.run()
    assert world.manager.metrics.stored_blocks == 0
    assert world.manager.metrics.not_stored == {NotStored.NOT_CERTAIN: 9}
    world.check_at_rest()


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
    assert requests._doubts is None
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
