"""Resets of vLLM's prefix cache: heard before vLLM looks whether it can, and not stopped by copies.

Whoever loads new weights lets vLLM forget what it has computed, in one way or another: `reset_prefix_cache`, `sleep`,
`pause_generation`. All of them come to the block pool. There vLLM counts the blocks in use and does nothing if there
are any, for they might belong to requests that run; and it tells the connector only after that, if it was asked to. So
kvtide listens at the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def watch_resets(pool: Any, cache_manager: Any, heard: Callable[[], None]) -> None:
    """Call `heard` before every reset of `pool`, and let only blocks of requests stand in its way.

    Blocks that nothing but copies hold stay taken until these are over, so nobody else writes to them or reads them.
    What they are known by is forgotten like all the rest.
    """
    reset = pool.reset_prefix_cache

    def reset_prefix_cache() -> bool:
        heard()
        held = _held_by_no_request(pool, cache_manager)
        pool.free_block_queue.num_free_blocks += held  # what vLLM looks at, and nothing else until it is set right
        try:
            return bool(reset())
        finally:
            pool.free_block_queue.num_free_blocks -= held

    pool.reset_prefix_cache = reset_prefix_cache


def _held_by_no_request(pool: Any, cache_manager: Any) -> int:
    """Return how many blocks are in use if no request has any; 0 if one has, or if that cannot be told."""
    if cache_manager is None:
        return 0
    for group in cache_manager.coordinator.single_type_managers:
        if any(group.req_to_blocks.values()):
            return 0
    null_blocks = 1
    return int(pool.num_gpu_blocks - null_blocks - pool.get_num_free_blocks())
