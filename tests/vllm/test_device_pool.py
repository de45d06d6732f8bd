"""vLLM's block pool keeps the contract of every device pool, and what is stored while it is free keeps its age."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from kvtide.copy import Direction
from kvtide.core import BlockContent, FullAttention, Geometry
from kvtide.vllm.device_pool import VLLMDevicePool
from kvtide.vllm.layout import Layout
from tests.contracts.device_contract import BLOCKS, Bench, DevicePoolContract, content
from tests.vllm.engines import Control
from tests.vllm.test_scenarios import hold, release
from tests.vllm.world import BLOCK_TOKENS, World, text

GROUPS = (FullAttention(4),) * 3
LAYOUT = Layout(Geometry(groups=GROUPS, block_bytes=8, device_blocks=BLOCKS), (0, 1, 2), 4, 4, drops_last_block=False)


class VLLMBench(Bench):
    """What vLLM's cache manager does to its block pool."""

    def __init__(self, num_blocks: int, *, walked: bool = True) -> None:
        self.blocks = BlockPool(num_blocks + 1, enable_caching=True, hash_block_size=4)  # with the null block
        self.pool = self.device = VLLMDevicePool(self.blocks, LAYOUT, walked=walked)

    def allocate(self, count: int) -> list[int] | None:
        if count > self.num_free():
            return None
        return [block.block_id for block in self.blocks.get_new_blocks(count)]

    def hold(self, block: int, content: BlockContent) -> None:
        held = self.blocks.blocks[block]
        hashed = make_block_hash_with_group_id(content.key, content.group)
        held.set_block_hash(hashed, content.end_tokens)
        self.blocks.cached_block_hash_to_block.insert(hashed, held)

    def hit(self, blocks: Sequence[int]) -> None:
        """Let a request find blocks in the prefix cache, and the connector hear of it."""
        self.blocks.touch([self.blocks.blocks[id_] for id_ in blocks])
        self.device.used([blocks])

    def free(self, blocks: Sequence[int]) -> None:
        self.blocks.free_blocks([self.blocks.blocks[id_] for id_ in reversed(blocks)])

    def num_free(self) -> int:
        return int(self.blocks.get_num_free_blocks())

    def queue(self) -> list[int]:
        """The free blocks, next victim first."""
        return [block.block_id for block in self.blocks.free_block_queue.get_all_free_blocks()]


class TestVLLMDevicePool(DevicePoolContract):
    def make(self, num_blocks: int) -> Bench:
        return VLLMBench(num_blocks)


@pytest.fixture(params=["eager", "lazy"])
def bench(request: pytest.FixtureRequest) -> VLLMBench:
    return full_bench(BLOCKS, walked=request.param == "lazy")


def full_bench(num_blocks: int, *, walked: bool = True) -> VLLMBench:
    """A pool whose blocks all hold something, and are all free."""
    bench = VLLMBench(num_blocks, walked=walked)
    blocks = bench.allocate(num_blocks)
    assert blocks is not None
    for number, block in enumerate(blocks):
        bench.hold(block, content(-1 - number))
    bench.free(blocks)
    return bench


@pytest.mark.parametrize("pinned", [[0], [7], [3, 4, 5], [5, 3, 4], [0, 7], list(range(BLOCKS))])
def test_blocks_that_were_free_come_back_to_where_they_were(bench: VLLMBench, pinned: list[int]) -> None:
    order = bench.queue()
    blocks = [order[index] for index in pinned]
    bench.pool.pin(blocks)
    assert bench.queue() == [block for block in order if block not in blocks]
    for block in blocks:
        bench.pool.unpin([block])
    assert bench.queue() == order


def test_what_has_become_free_meanwhile_is_younger(bench: VLLMBench) -> None:
    oldest, *order = bench.queue()
    assert bench.allocate(1) == [oldest]
    bench.hold(oldest, content(100))
    bench.pool.pin(order[3:5])
    bench.free([oldest])
    bench.pool.unpin(order[3:5])
    assert bench.queue() == [*order, oldest]


def test_blocks_whose_turn_has_come_and_gone_are_next(bench: VLLMBench) -> None:
    order = bench.queue()
    bench.pool.pin(order[:3])
    assert bench.allocate(2) == order[3:5]
    bench.pool.unpin(order[:3])
    assert bench.queue()[3:] == order[5:]
    assert set(bench.queue()[:3]) == set(order[:3])


def test_a_block_that_a_request_used_while_it_was_pinned_is_as_young_as_the_request(bench: VLLMBench) -> None:
    order = bench.queue()
    bench.pool.pin(order[:2])
    bench.hit(order[:1])
    bench.free(order[:1])
    bench.pool.unpin(order[:2])
    assert bench.queue() == [*order[1:], order[0]]


def test_a_block_that_is_still_used_after_its_unpin_is_as_young_as_the_request(bench: VLLMBench) -> None:
    order = bench.queue()
    bench.pool.pin(order[:2])
    bench.hit(order[:1])
    bench.pool.unpin(order[:2])
    bench.free(order[:1])
    assert bench.queue() == [*order[1:], order[0]]


def test_a_block_that_was_forgotten_while_it_was_pinned_is_next(bench: VLLMBench) -> None:
    order = bench.queue()
    bench.pool.pin(order[4:5])
    bench.blocks.evict_blocks({order[4]})
    bench.pool.unpin(order[4:5])
    assert bench.queue() == [order[4], *order[:4], *order[5:]]


def test_a_second_connector_beside_the_first_sees_the_same_queue(bench: VLLMBench) -> None:
    order = bench.queue()
    bench.pool.pin(order[2:4])
    other = VLLMDevicePool(bench.blocks, LAYOUT, walked=True)
    other.pin(order[3:5])
    bench.pool.unpin(order[2:4])
    free = other.walk_free(None)
    assert free is not None
    assert [each.block for each in free] == [*order[:3], *order[5:]]
    other.unpin(order[3:5])
    assert bench.queue() == order


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_with_stores_is_in_the_order_of_one_without(seed: int) -> None:
    draw = random.Random(seed)
    bench, plain = full_bench(40), full_bench(40)
    used: list[int] = []
    for number in range(2_000):
        free = bench.queue()
        if free and draw.random() < 0.4:
            blocks = draw.sample(free, draw.randrange(1, len(free) + 1))
            bench.pool.pin(blocks)
            for block in draw.sample(blocks, len(blocks)):
                bench.pool.unpin([block])
        if used and draw.random() < 0.5:
            leaving = [used.pop(draw.randrange(len(used)))]
            bench.free(leaving)
            plain.free(leaving)
        elif free:
            [block] = bench.allocate(1) or []
            assert plain.allocate(1) == [block]
            for each in (bench, plain):
                each.hold(block, content(number))
            used.append(block)
        assert bench.queue() == plain.queue()


def test_a_prompt_that_was_hit_while_it_was_stored_is_as_young_as_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On vLLM's scheduler: a store that began before the hit and ends after it does not make the prompt old again."""
    world = World(tmp_path, mode="lazy", blocks=1 + 4 * 4, control=Control(), monkeypatch=monkeypatch)
    prompts = [text(seed, 3 * BLOCK_TOKENS + 1) for seed in range(4)]
    hold(world, Direction.STORE)
    for number, tokens in enumerate(prompts):
        run_one(world, world.add(f"r{number}", tokens, 1))
    for _ in range(3):
        world.step()
    again = world.add("again", prompts[0], 1)
    blocks = [world.side._device.find(0, key) for key in again.block_hashes]
    storing = {block for _, copy in world.control.engine.waiting.values() for block in copy.blocks}
    assert storing >= set(blocks), "this says something only if they are being stored"
    run_one(world, again)
    release(world)
    world.run()
    queue = [block.block_id for block in world.pool.free_block_queue.get_all_free_blocks()]
    assert queue[-3:] == blocks[::-1]
    world.check_at_rest()


def run_one(world: World, request: Any) -> None:
    """Step until a request is over; its stores may be under way."""
    while request.request_id not in world.done:
        world.step()
