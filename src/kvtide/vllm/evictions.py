"""Blocks that vLLM gives to somebody else: heard at the block pool, because nothing tells the connector.

In lazy mode that is the moment in which a block is lost that was not stored in time (F4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtide.core import Key
from kvtide.vllm.device_pool import VLLMDevicePool


def watch_evictions(pool: Any, device: VLLMDevicePool, heard: Callable[[int, Key], None]) -> None:
    """Call `heard` with each key that no block holds any more because vLLM has given its last one out."""
    get = pool.get_new_blocks

    def get_new_blocks(num_blocks: int) -> Any:
        held = device.next_victims(num_blocks)
        blocks = get(num_blocks)
        for group, key in device.gone(held):
            heard(group, key)
        return blocks

    pool.get_new_blocks = get_new_blocks
