"""Models whose KV cache kvtide cannot keep are refused at start, and the error says what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import CrossAttentionSpec, EncoderOnlyAttentionSpec, RSWASpec

from kvtide.copy import Direction
from kvtide.errors import ConfigError
from kvtide.vllm.layout import read_layout
from tests.vllm.engines import Control
from tests.vllm.world import BLOCK_TOKENS, World, full, latent, make_kv_cache_config, replayed, sliding, text

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


def test_only_full_attention_keeps_its_blocks_as_long_as_a_request_runs(config: Any) -> None:
    assert read_layout(config, make_kv_cache_config([full(), latent()], 32)).keeps_blocks
    assert not read_layout(config, make_kv_cache_config([full(), sliding(40)], 32)).keeps_blocks


@pytest.mark.parametrize("engines", [1, 2])
def test_f31_an_engine_waits_for_copies_only_if_no_other_one_waits_for_its_steps(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engines: int
) -> None:
    """With experts over data-parallel engines all of them compute each step together."""
    monkeypatch.setattr(config.parallel_config, "data_parallel_size", engines)
    layout = read_layout(config, make_kv_cache_config([full()], 32))
    assert layout.in_step_with_others == (engines > 1)
    world = World(tmp_path, control=Control(), monkeypatch=monkeypatch)
    world.side._layout = replace(world.side._layout, in_step_with_others=layout.in_step_with_others)
    world.control.engine.held = {Direction.STORE}
    waited: list[tuple[int, ...]] = []
    monkeypatch.setattr(type(world.control.engine), "wait", lambda _, ids, __: waited.append(tuple(ids)))
    world.add("a", text(1, 100), 1)
    for _ in range(6):
        world.step()
    assert bool(waited) == (engines == 1)
