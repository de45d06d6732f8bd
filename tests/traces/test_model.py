"""What planning wants to know of a model, from its configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtide.errors import ConfigError
from kvtide.traces.model import read_model

LLAMA = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({**LLAMA, "torch_dtype": "bfloat16"}, 131_072),
        ({**LLAMA, "torch_dtype": "float32"}, 262_144),
        ({**LLAMA, "head_dim": 64}, 65_536),
        ({**LLAMA, "num_key_value_heads": None}, 524_288),
        ({"text_config": LLAMA}, 131_072),
        ({"text_config": LLAMA, "dtype": "float32"}, 262_144),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 61 * 576 * 2),
    ],
)
def test_a_config_tells_the_bytes_of_a_token(tmp_path: Path, config: object, expected: int) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert read_model(str(path)).bytes_per_token == expected


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**LLAMA, "num_hidden_layers": "many"})])
def test_a_config_that_does_not_tell_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="--model-config"):
        read_model(str(path))


def test_a_config_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can be read"):
        read_model(str(tmp_path / "none"))


LLAMA_8B = {**LLAMA, "intermediate_size": 14_336, "vocab_size": 128_256}
QWEN_30B = {
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151_936,
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129_280,
    "quantization_config": {"quant_method": "fp8"},
}


@pytest.mark.parametrize(
    ("config", "billions", "active", "gigabytes"),
    [
        (LLAMA_8B, 8.03, 8.03, 16.06),
        ({**LLAMA_8B, "tie_word_embeddings": True}, 7.5, 7.5, 15.0),
        ({**LLAMA_8B, "quantization_config": {"quant_method": "awq", "bits": 4}}, 8.03, 8.03, 4.0),
        (QWEN_30B, 30.5, 3.3, 61),
        (DEEPSEEK_V3, 671, 37.5, 671),
    ],
)
def test_a_config_tells_parameters_and_weights_as_the_makers_count_them(
    tmp_path: Path, config: object, billions: float, active: float, gigabytes: float
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model = read_model(str(path))
    assert model.parameters == pytest.approx(billions * 1e9, rel=0.01)
    assert model.active_parameters == pytest.approx(active * 1e9, rel=0.02)
    assert model.weight_bytes == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_a_config_that_does_not_tell_its_widths_has_no_parameters(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert read_model(str(path)).parameters is None
