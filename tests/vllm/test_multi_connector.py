"""kvtide beside another connector: only one of them loads, both see every request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import engine
from tests.vllm.test_round_trip import assert_same, hit


def child(**options: Any) -> dict[str, Any]:
    return {
        "kv_connector": "KVTideConnector",
        "kv_connector_module_path": "kvtide.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host": "16MiB", **options},
    }


def test_the_one_that_was_not_chosen_hears_of_blocks_and_loads_nothing(llama: Path, llama_says: Says) -> None:
    config = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [child(), child(mode="lazy")]},
    }
    prompts = PROMPTS[:6]
    with engine(llama, None, kv_transfer_config=config) as offloading:
        first, second = (one._scheduler.manager for one in offloading.scheduler.connector._connectors)
        assert_same(offloading.generate(*prompts), llama_says(*prompts))
        offloading.drain()
        again = offloading.generate(*prompts)
        assert_same(again, llama_says(*prompts))
        assert [result.cached_tokens for result in again] == [hit(tokens) for tokens in prompts]
        offloading.drain()
        assert first.metrics.loaded_tokens > 0
        assert second.metrics.loaded_tokens == 0
        for manager in (first, second):
            gauges = manager.gauges()
            assert (gauges.store_pins, gauges.transfers, gauges.slots_writing, gauges.slots_pinned) == (0, 0, 0, 0)
        assert not offloading.scheduler.requests
        assert offloading.pool.get_num_free_blocks() == offloading.free_at_start
