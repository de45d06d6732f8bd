"""vLLM's own scenarios for offloading schedulers and connectors, by their names, on its real scheduler and block pool.

Every step checks all bytes (see world.py); every test ends with a leak check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from kvtide.copy import Direction
from kvtide.core import NotLoaded, NotStored
from kvtide.vllm import connector
from kvtide.vllm.device_pool import VLLMDevicePool
from kvtide.vllm.layout import read_layout
from tests.support import host_of
from tests.vllm.engines import Control
from tests.vllm.world import BLOCK_TOKENS, World, full, make_kv_cache_config, sliding, text

BLOCKS = 6
PROMPT = text(1, BLOCKS * BLOCK_TOKENS + 3)
"""Six full blocks and a bit."""


class Make:
    """Makes worlds and checks at the end that they came to rest."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path, self._monkeypatch = path, monkeypatch
        self.worlds: list[World] = []

    def __call__(self, **args: Any) -> World:
        world = World(self._path, control=Control(), monkeypatch=self._monkeypatch, **args)
        self.worlds.append(world)
        return world


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    make = Make(tmp_path, monkeypatch)
    yield make
    for world in make.worlds:
        for engine in world.control.engines:
            engine.held.clear()
        world.run()
        world.check_at_rest()


def hold(world: World, direction: Direction) -> None:
    """Keep copies in one direction from moving. The engine is made in the first step."""
    world.control.setup["held"] = {direction}
    for engine in world.control.engines:
        engine.held.add(direction)


def release(world: World) -> None:
    world.control.engine.held.clear()


# ---------------------------------------------------------------------- the offload scheduler's


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_store_and_load_round_trip(make: Make, mode: str) -> None:
    world = make(mode=mode, blocks=12)
    world.generate("a", PROMPT)
    world.generate("b", text(2, 120))  # lazy mode stores what this one is about to evict
    world.evict_device()
    assert world.generate("again", PROMPT) == BLOCKS * BLOCK_TOKENS


def test_hit_capped_below_the_last_token(make: Make) -> None:
    world = make()
    whole = text(1, BLOCKS * BLOCK_TOKENS)
    world.generate("a", whole)
    world.evict_device()
    assert world.generate("again", whole) == (BLOCKS - 1) * BLOCK_TOKENS
    assert world.manager.metrics.not_loaded[NotLoaded.LAST_TOKEN] == BLOCK_TOKENS


def test_duplicate_store_skipped(make: Make) -> None:
    world = make()
    world.generate("a", PROMPT)
    stored = world.manager.metrics.stored_blocks
    world.generate("same", PROMPT)
    assert world.manager.metrics.stored_blocks == stored


def test_in_flight_store_dedup_across_steps(make: Make) -> None:
    world = make()
    hold(world, Direction.STORE)
    world.add("a", PROMPT, new_tokens=8)
    for _ in range(4):
        world.step()
    world.add("same", PROMPT, new_tokens=8)
    for _ in range(6):
        world.step()
    waiting = [block for _, copy in world.control.engine.waiting.values() for block in copy.slots]
    assert len(waiting) == BLOCKS
    release(world)
    world.run()
    assert world.manager.metrics.stored_blocks == BLOCKS


def test_final_block_flushed_on_finish(make: Make) -> None:
    world = make()
    # 3 tokens into the seventh block; with 13 generated ones it is full, and the last of them has no KV yet.
    world.generate("a", PROMPT, new_tokens=14)
    assert world.manager.metrics.stored_blocks == BLOCKS + 1


def test_lru_eviction_order(make: Make) -> None:
    world = make(host_blocks=2 * BLOCKS, policy="lru")
    world.generate("a", PROMPT)
    world.generate("b", text(2, len(PROMPT)))
    world.evict_device()
    world.generate("a again", PROMPT)  # now b is the oldest
    world.generate("c", text(3, len(PROMPT)))
    world.evict_device()
    assert world.generate("b again", text(2, len(PROMPT))) == 0
    assert world.generate("a once more", PROMPT) <= BLOCKS * BLOCK_TOKENS


def test_touched_blocks_survive_eviction(make: Make) -> None:
    world = make(host_blocks=BLOCKS, blocks=64)
    world.generate("a", PROMPT)
    world.evict_device()
    hold(world, Direction.LOAD)
    world.add("again", PROMPT)
    world.step()
    world.add("other", text(2, len(PROMPT)))
    for _ in range(8):
        world.step()
    assert world.manager.metrics.evicted_blocks == 0  # all that could go is being read
    release(world)
    world.run()
    assert world.manager.metrics.loaded_tokens == BLOCKS * BLOCK_TOKENS


def test_preemption_leaks_no_host_block(make: Make) -> None:
    world = make(blocks=16, max_running=4)
    for number in range(4):
        world.add(f"r{number}", text(number, 90), new_tokens=30)
    world.run()
    assert world.manager.metrics.preemptions > 0
    assert len(world.done) == 4


def test_in_flight_finish_deferred_cleanup(make: Make) -> None:
    world = make()
    hold(world, Direction.STORE)
    world.add("a", PROMPT)
    for _ in range(12):
        world.step()
    assert world.done == ["a"]
    assert not world.scheduler.requests
    assert world.side._device.count_pinned() == BLOCKS  # the copy reads them, whoever is gone
    assert world.pool.get_num_free_blocks() == world.free_at_start - BLOCKS
    release(world)
    world.run()
    assert world.manager.metrics.stored_blocks == BLOCKS


def test_chunked_prefill_reads_live_block_ids(make: Make) -> None:
    world = make(step_tokens=2 * BLOCK_TOKENS)
    world.generate("a", PROMPT)
    world.evict_device()
    assert world.generate("again", PROMPT) == BLOCKS * BLOCK_TOKENS


def test_partial_device_prefix_plus_host_load(make: Make) -> None:
    world = make()
    world.generate("a", PROMPT)
    world.evict_device()
    world.generate("begin", PROMPT[: 2 * BLOCK_TOKENS + 1])
    before = world.manager.metrics.loaded_tokens
    assert before == 2 * BLOCK_TOKENS
    assert world.generate("again", PROMPT) == (BLOCKS - 2) * BLOCK_TOKENS


def test_toctou(make: Make) -> None:
    """What was offered is still there when vLLM has allocated for it, though others wanted the room (F11)."""
    world = make(host_blocks=BLOCKS, blocks=64)
    world.generate("a", PROMPT)
    world.evict_device()
    request = world.add("again", PROMPT)
    offered, is_async = world.connector.get_num_new_matched_tokens(request, 0)
    assert (offered, is_async) == (BLOCKS * BLOCK_TOKENS, True)
    assert host_of(world.manager).take(BLOCKS) == []
    world.run()
    assert world.manager.metrics.loaded_tokens == BLOCKS * BLOCK_TOKENS


def test_reset_with_pending_eager_stores(make: Make) -> None:
    world = make()
    hold(world, Direction.STORE)
    world.add("a", PROMPT)
    for _ in range(8):
        world.step()
    assert world.connector.reset_cache() is True
    release(world)
    world.run()
    assert world.manager.metrics.stored_blocks == 0
    assert world.manager.metrics.not_stored[NotStored.RESET] >= BLOCKS
    world.evict_device()
    assert world.generate("again", PROMPT) == 0


def test_reset_with_pending_lazy_stores(make: Make) -> None:
    world = make(mode="lazy", blocks=12)
    world.generate("a", PROMPT)
    hold(world, Direction.STORE)
    world.add("b", text(2, 120))
    for _ in range(4):
        world.step()
    assert world.control.engine.waiting
    assert world.connector.reset_cache() is True
    release(world)
    world.run()
    gone = world.manager.metrics.not_stored[NotStored.RESET]
    assert gone > 0


@pytest.mark.parametrize("old_worker", [False, True], ids=["0.32", "0.24"])
def test_reset_with_pending_loads(make: Make, old_worker: bool) -> None:
    world = make(old_worker=old_worker)
    world.generate("a", PROMPT)
    world.evict_device()
    hold(world, Direction.LOAD)
    world.add("again", PROMPT)
    world.step()
    assert world.control.engine.waiting
    assert world.connector.reset_cache() is True
    release(world)
    world.run()
    assert "again" in world.done
    assert world.manager.metrics.loaded_tokens == 0
    assert world.manager.metrics.not_loaded[NotLoaded.RESET] == BLOCKS * BLOCK_TOKENS


@pytest.mark.parametrize("old_worker", [False, True], ids=["0.32", "0.24"])
@pytest.mark.parametrize("shared", [0, 32], ids=["nothing on the device", "a part on the device"])
def test_f9_reset_when_a_load_has_failed_and_vllm_has_not_gone_on(make: Make, old_worker: bool, shared: int) -> None:
    """vLLM keeps the request's blocks until it schedules again, and would refuse."""
    world = make(old_worker=old_worker)
    world.generate("a", PROMPT)
    world.evict_device()
    if shared:
        world.generate("part", PROMPT[: shared + 1])
    loaded = world.manager.metrics.loaded_tokens
    world.control.engine.failing.add(Direction.LOAD)
    world.add("again", PROMPT)
    world.step()
    assert world.manager.metrics.loads_failed == 1
    world.new_weights()
    world.control.engine.failing.clear()
    world.run()
    assert "again" in world.done
    assert world.manager.metrics.loaded_tokens == loaded


def test_null_blocks_of_sliding_groups_skipped(make: Make) -> None:
    world = make(groups=[full(), sliding(32)], blocks=48, step_tokens=32)
    world.generate("a", PROMPT)
    world.evict_device()
    loaded = world.manager.metrics.loaded_blocks
    assert world.generate("again", PROMPT) == BLOCKS * BLOCK_TOKENS
    # All blocks of the full group, and of the sliding one the two that hold the window.
    assert world.manager.metrics.loaded_blocks - loaded == BLOCKS + 2


def test_context_parallel_block_sizes(tmp_path: Path) -> None:
    """With decode context parallel a block id stands for more tokens; the layout says how many."""
    world = World(tmp_path)
    world.workers[0].shutdown()
    world.config.parallel_config.decode_context_parallel_size = 2
    layout = read_layout(world.config, make_kv_cache_config([full()], 32))
    assert layout.boundary_tokens == layout.hash_tokens == 2 * BLOCK_TOKENS
    assert layout.geometry.groups[0].block_tokens == 2 * BLOCK_TOKENS


# ---------------------------------------------------------------------- the connectors'


@pytest.mark.parametrize("old_worker", [False, True], ids=["0.32", "0.24"])
@pytest.mark.parametrize("layout", ["full", "sliding"])
def test_load_failure_recovery(make: Make, layout: str, old_worker: bool) -> None:
    groups = [full()] if layout == "full" else [full(), sliding(32)]
    world = make(groups=groups, blocks=48, old_worker=old_worker)
    world.generate("a", PROMPT)
    world.evict_device()
    world.control.engine.failing.add(Direction.LOAD)
    assert world.generate("again", PROMPT) == 0
    assert "again" in world.done
    assert world.manager.metrics.loads_failed == 1
    world.control.engine.failing.clear()
    world.evict_device()
    assert world.generate("once more", PROMPT) == BLOCKS * BLOCK_TOKENS


def test_error_propagation(make: Make) -> None:
    """A failed copy is counted, said in the log and seen in the numbers; the engine goes on."""
    world = make()
    world.control.engine.failing.add(Direction.STORE)
    world.generate("a", PROMPT)
    assert world.manager.metrics.stores_failed > 0
    assert world.manager.metrics.not_stored[NotStored.COPY_FAILED] >= BLOCKS


def test_invalid_blocks_no_cache_pollution(make: Make) -> None:
    """What a failed load left behind is never served: neither from the device nor, stored again, from the host."""
    world = make()
    world.generate("a", PROMPT)
    world.evict_device()
    engine = world.control.engine
    engine.failing.add(Direction.LOAD)
    world.kv[0][:] = 0  # whoever reads a block that was not filled reads this
    world.add("again", PROMPT)
    world.add("sibling", PROMPT)
    world.run()
    engine.failing.clear()
    world.generate("from the device", PROMPT)
    world.evict_device()
    assert world.generate("from the host", PROMPT) == BLOCKS * BLOCK_TOKENS


def test_remote_prefill_lifecycle(make: Make) -> None:
    world = make()
    world.generate("a", PROMPT)
    world.evict_device()
    hold(world, Direction.LOAD)
    request = world.add("again", PROMPT)
    world.step()
    assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert world.scheduler.has_requests()
    release(world)
    world.step()
    world.step()
    assert request.status == RequestStatus.RUNNING
    assert request.num_computed_tokens > BLOCKS * BLOCK_TOKENS
    world.run()
    assert "again" in world.done


def test_abort_while_loading(make: Make) -> None:
    world = make()
    world.generate("a", PROMPT)
    world.evict_device()
    hold(world, Direction.LOAD)
    world.add("again", PROMPT)
    world.step()
    world.abort("again")
    world.step()
    assert "again" in world.scheduler.requests  # its blocks are being written
    release(world)
    world.run()
    assert "again" not in world.scheduler.requests


def test_pinned_blocks_make_room_instead_of_preempting(make: Make) -> None:
    """F12: blocks that only a store keeps are waited for; nobody is preempted for them."""
    world = make(blocks=17, pin_budget=16)
    hold(world, Direction.STORE)
    world.add("a", text(1, 90), new_tokens=1)
    for _ in range(4):
        world.step()
    assert world.done == ["a"]
    world.add("b", text(2, 150), new_tokens=20)
    for _ in range(6):
        world.step()
    assert world.connector.has_pending_block_frees()
    release(world)
    world.run()
    assert world.done == ["a", "b"]
    assert world.manager.metrics.preemptions == 0


def test_a_world_without_pins_is_caught(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: without the guard, bytes of other requests reach the host, and the world sees it."""
    monkeypatch.setattr(VLLMDevicePool, "pin", lambda self, blocks: None)
    monkeypatch.setattr(VLLMDevicePool, "unpin", lambda self, blocks: None)
    world = make(blocks=12, pin_budget=11)
    hold(world, Direction.STORE)
    world.add("a", PROMPT)
    for _ in range(8):
        world.step()
    world.add("b", text(2, 130))
    for _ in range(6):
        world.step()
    release(world)
    with pytest.raises(AssertionError, match="holds wrong bytes"):
        world.run()
    make.worlds.clear()


def load_for_several_in_a_small_pool(world: World) -> None:
    prompts = [text(number, 200) for number in range(3)]
    for number, tokens in enumerate(prompts):
        world.generate(f"r{number}", tokens[:140], new_tokens=1)
    world.evict_device()
    for number, tokens in enumerate(prompts):
        world.add(f"again{number}", tokens, new_tokens=20)
    world.run()


UNRESERVED: dict[str, Any] = {
    "groups": [full(), sliding(40), sliding(40)],
    "blocks": 36,
    "host_blocks": 120,
    "engine_args": {"scheduler_reserve_full_isl": False},
}


def test_f13_requests_that_hold_blocks_for_loads_do_not_wait_for_each_other(make: Make) -> None:
    """Without vLLM's reservation of room for whole prompts, one request at a time holds blocks for a load."""
    world = make(**UNRESERVED)
    load_for_several_in_a_small_pool(world)
    assert {"again0", "again1", "again2"} <= set(world.done)
    assert world.manager.metrics.loaded_tokens > 0


def test_a_world_in_which_several_hold_blocks_for_loads_hangs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of the test before."""
    monkeypatch.setattr(connector, "read_layout", lambda *args: replace(read_layout(*args), reserves_room=True))
    world = make(**UNRESERVED)
    with pytest.raises(AssertionError, match="does not come to rest"):
        load_for_several_in_a_small_pool(world)
    make.worlds.clear()


def preempt_in_the_step_that_scheduled_it(world: World) -> None:
    """Let a prefill be scheduled first and then preempted by a more important request, in one step."""
    world.add("prefill", text(1, 180), priority=5)
    world.step()
    world.add("important", text(2, 30), new_tokens=20)
    for _ in range(3):
        world.step()
    assert world.scheduler.requests["prefill"].num_computed_tokens == 160
    assert world.pool.get_num_free_blocks() == 2  # the next chunk takes both, and then the other one needs a block
    world.step()
    assert world.scheduler.requests["prefill"].status == RequestStatus.PREEMPTED
    assert "important" in world.scheduler.requests
    world.run()


PRIORITY: dict[str, Any] = {
    "blocks": 15,
    "engine_args": {
        "scheduling_policy": "priority",
        "long_prefill_token_threshold": 32,
        "scheduler_reserve_full_isl": False,
    },
}


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_blocks_of_a_request_that_is_preempted_in_the_step_that_scheduled_it_are_not_stored(
    make: Make, mode: str
) -> None:
    """vLLM gave them keys, and computed nothing into them (vLLM #57580)."""
    world = make(mode=mode, **PRIORITY)
    preempt_in_the_step_that_scheduled_it(world)
    assert world.manager.metrics.preemptions == 1


def test_a_world_that_stores_what_was_never_computed_is_caught(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary of the test before."""
    monkeypatch.setattr(VLLMDevicePool, "forget", lambda *args: None)
    world = make(mode="lazy", **PRIORITY)
    with pytest.raises(AssertionError, match="holds wrong bytes"):
        preempt_in_the_step_that_scheduled_it(world)
    make.worlds.clear()


def test_f13_what_is_announced_for_two_reasons_in_one_step_is_announced_together(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that was over at once, and one that a reset came between: both requests wait for the news."""
    side = make().side
    side._loads.unannounced["came between"] = 3
    side._loads.admitted = True
    monkeypatch.setattr(
        side._loads, "_announce_loads_without_copies", lambda step: step.announce.update({"at once": None})
    )
    cached = SimpleNamespace(new_block_ids=[], req_ids=[])
    step = SimpleNamespace(
        preempted_req_ids=None,
        total_num_scheduled_tokens=0,
        num_scheduled_tokens={},
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
    )
    assert side.plan(step).announce == {"at once": None, "came between": 3}
    assert not side.busy
