"""Models whose KV cache kvtide cannot keep are refused at start, and the error says what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import CrossAttentionSpec, EncoderOnlyAttentionSpec, RSWASpec

from kvtide.errors import ConfigError
from kvtide.vllm.layout import read_layout
from tests.vllm.world import BLOCK_TOKENS, World, full, make_kv_cache_config, replayed

SHAPE: dict[str, Any] = {"block_size": BLOCK_TOKENS, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("groups")
    world = World(path)
    world.workers[0].shutdown()  # its copy thread is not needed
    return world.config


@pytest.mark.parametrize(
    "spec",
    [CrossAttentionSpec(**SHAPE), EncoderOnlyAttentionSpec(**SHAPE), RSWASpec(**SHAPE, rswa_window=32)],
    ids=lambda spec: type(spec).__name__,
)
def test_attention_that_has_no_rule_is_refused(config: Any, spec: Any) -> None:
    with pytest.raises(ConfigError, match=type(spec).__name__):
        read_layout(config, make_kv_cache_config([full(), spec], 32))


def test_blocks_that_are_on_the_host_are_refused(config: Any) -> None:
    """HiSparse beside kvtide in a MultiConnector: its block ids are none of the device's."""
    kv_cache_config = make_kv_cache_config([full(), full()], 32)
    kv_cache_config.kv_cache_groups[0].host_resident = True
    with pytest.raises(ConfigError, match="HiSparse"):
        read_layout(config, kv_cache_config)


def test_groups_that_take_no_part_in_prefix_caching_are_left_alone(config: Any) -> None:
    layout = read_layout(config, make_kv_cache_config([full(), replayed(window=40)], 32))
    assert layout.group_ids == (0,)
