"""kvtide's events as vLLM's KV cache events, for routers that want to know who has what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvtide.core import Removed, Stored
from kvtide.core.events import CacheEvent
from kvtide.vllm.layout import Layout

MEDIUM = "CPU"


def as_vllm_events(events: list[CacheEvent], layout: Layout) -> Iterator[Any]:
    """Translate. Who lost events, or was reset, hears that nothing is there: a router then only guesses too low."""
    for event in events:
        if isinstance(event, Stored):
            yield BlockStored(
                block_hashes=[maybe_convert_block_hash(key) for key in event.keys],
                parent_block_hash=None if event.parent is None else maybe_convert_block_hash(event.parent),
                token_ids=[],  # the core does not know them; the device's event of the same hash has told them
                block_size=layout.geometry.groups[event.group].block_tokens,
                lora_id=None,
                medium=MEDIUM,
                lora_name=None,
                group_idx=layout.group_ids[event.group],
            )
        elif isinstance(event, Removed):
            yield BlockRemoved(
                block_hashes=[maybe_convert_block_hash(key) for key in event.keys],
                medium=MEDIUM,
                group_idx=layout.group_ids[event.group],
            )
        else:
            yield AllBlocksCleared()
