"""The simulated device pool keeps the contract that every engine's pool has to keep."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core import BlockContent
from kvtide.sim.checkers.watch import Watch
from kvtide.sim.pool import SimPool
from kvtide.sim.world import World
from tests.contracts.device_contract import Bench, DevicePoolContract


class SimPoolBench(Bench):
    def __init__(self, num_blocks: int) -> None:
        world = World.draw(0)
        assert world.device_blocks >= num_blocks, "the checkers need a world with as many blocks"
        self.blocks = SimPool(num_blocks, Watch(world))
        self.pool = self.blocks

    def allocate(self, count: int) -> list[int] | None:
        return self.blocks.allocate(count)

    def hold(self, block: int, content: BlockContent) -> None:
        self.blocks.register(block, content)

    def free(self, blocks: Sequence[int]) -> None:
        self.blocks.free(blocks)

    def num_free(self) -> int:
        return self.blocks.num_free


class TestSimPool(DevicePoolContract):
    def make(self, num_blocks: int) -> Bench:
        return SimPoolBench(num_blocks)
