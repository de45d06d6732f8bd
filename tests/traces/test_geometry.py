"""Bytes per token from a model's configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.traces.geometry import bytes_per_token

LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**LLAMA, "torch_dtype": "bfloat16"}, 131_072),
        ({**LLAMA, "torch_dtype": "float32"}, 262_144),
        ({**LLAMA, "head_dim": 64}, 65_536),
        ({**LLAMA, "num_key_value_heads": None}, 524_288),
        ({"text_config": LLAMA}, 131_072),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 61 * 576 * 2),
    ],
)
def test_a_config_tells_the_bytes_of_a_token(tmp_path: Path, config: object, expected: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert bytes_per_token(str(path)) == expected


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**LLAMA, "num_hidden_layers": "many"})])
def test_a_config_that_does_not_tell_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="--model-config"):
        bytes_per_token(str(path))


def test_a_config_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can be read"):
        bytes_per_token(str(tmp_path / "none"))
