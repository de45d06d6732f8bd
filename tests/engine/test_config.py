from __future__ import annotations

from typing import Any

import pytest

from kvtide.core.groups import FullAttention, SlidingWindow
from kvtide.engine import Engine, EngineConfig, ModelConfig
from kvtide.errors import ConfigError
from tests.engine.support import tiny_config, tiny_model


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"layers": 0}, "layers=0: expected a whole number of at least 1"),
        ({"layers": "4"}, "layers='4'"),
        ({"head_dim": 7}, "head_dim=7: expected an even number"),
        ({"heads": 6, "kv_heads": 4}, "heads=6: expected a multiple of kv_heads=4"),
        ({"layers": 3, "window_tokens": 8}, "layers=3: expected an even number"),
        ({"window_tokens": 1}, "window_tokens=1"),
        ({"vocab": 1}, "vocab=1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_f22_a_model_that_cannot_work_is_refused_by_the_option_s_name(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ModelConfig(**options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"ranks": 3}, "ranks=3: expected a divisor of kv_heads=2"),
        ({"ranks": 4}, "ranks=4: expected a divisor of kv_heads=2"),
        ({"device_blocks": 0}, "device_blocks=0"),
        ({"block_tokens": True}, "block_tokens=True"),
        ({"step_tokens": 0}, "step_tokens=0"),
        ({"max_running": 0}, "max_running=0"),
    ],
)
def test_f22_an_engine_that_cannot_work_is_refused_by_the_option_s_name(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        EngineConfig(**{"model": tiny_model(), "device_blocks": 8, **options})


def test_f22_offload_options_are_checked_too() -> None:
    with pytest.raises(ConfigError, match='did you mean "mode"'):
        Engine(tiny_config(), offload={"host": "1MiB", "mod": "lazy"})


def test_f22_a_mistyped_option_is_told_all_that_the_engine_takes() -> None:
    with pytest.raises(
        ConfigError, match=r"tires=\[\]: .*did you mean \"tiers\"\? known are host,.*, tiers, node, packing"
    ):
        Engine(tiny_config(), offload={"host": "1MiB", "tires": []})
    with pytest.raises(ConfigError, match='did you mean "node"'):
        Engine(tiny_config(), offload={"nod": "/run/kvtide/node.sock"})


def test_layers_with_a_window_are_a_group_of_their_own_and_blocks_have_one_size() -> None:
    full, mixed = tiny_config(), tiny_config(window_tokens=20)
    assert full.groups == (FullAttention(8),)
    assert mixed.groups == (FullAttention(8), SlidingWindow(8, 20))
    assert full.geometry().block_bytes == 2 * mixed.geometry().block_bytes


def test_ranks_share_a_block_evenly() -> None:
    assert tiny_config().geometry().block_bytes == 2 * tiny_config(ranks=2).geometry().block_bytes
