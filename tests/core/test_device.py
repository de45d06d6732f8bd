"""The device pool that the core is tested with keeps the contract that every engine's pool has to keep."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core import BlockContent
from kvtide.engine.block_pool import BlockPool
from tests.contracts.device_contract import Bench, DevicePoolContract


class BlockPoolBench(Bench):
    def __init__(self, num_blocks: int) -> None:
        self.blocks = BlockPool(num_blocks)
        self.pool = self.blocks

    def allocate(self, count: int) -> list[int] | None:
        return self.blocks.allocate(count)

    def hold(self, block: int, content: BlockContent) -> None:
        self.blocks.register(block, *content)

    def free(self, blocks: Sequence[int]) -> None:
        self.blocks.free(blocks)

    def num_free(self) -> int:
        return self.blocks.num_free


class TestBlockPool(DevicePoolContract):
    def make(self, num_blocks: int) -> Bench:
        return BlockPoolBench(num_blocks)
