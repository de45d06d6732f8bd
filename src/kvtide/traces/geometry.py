"""How many bytes of KV a token has: given, or from a model's config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from kvtide.errors import ConfigError

DEFAULT_BYTES_PER_TOKEN = 131_072
"""Llama-3.1-8B: 32 layers, 8 KV heads of 128 values, 16 bits."""
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "fp8": 1, "int8": 1}


def bytes_per_token(config_path: str) -> int:
    """Read a config.json as the Hugging Face hub has them. All layers are taken to be full attention."""
    try:
        config = json.loads(Path(config_path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--model-config", config_path, f"a file that can be read ({error.strerror})") from None
    except ValueError:
        raise ConfigError("--model-config", config_path, "a JSON file") from None
    if not isinstance(config, dict):
        raise ConfigError("--model-config", config_path, "a JSON object")
    text = config.get("text_config")
    fields: Mapping[str, object] = text if isinstance(text, dict) else config
    layers = _count(config_path, fields, "num_hidden_layers")
    dtype = fields.get("torch_dtype") or fields.get("dtype") or config.get("torch_dtype") or "bfloat16"
    value_bytes = _DTYPE_BYTES.get(str(dtype).removeprefix("torch."), 2)
    if "kv_lora_rank" in fields:  # multi-head latent attention: one compressed vector and one rotary key
        width = _count(config_path, fields, "kv_lora_rank") + _count(config_path, fields, "qk_rope_head_dim")
        return layers * width * value_bytes
    heads = _count(config_path, fields, "num_attention_heads")
    kv_heads = _count(config_path, fields, "num_key_value_heads") if fields.get("num_key_value_heads") else heads
    if fields.get("head_dim"):
        head_dim = _count(config_path, fields, "head_dim")
    else:
        head_dim = _count(config_path, fields, "hidden_size") // heads
    return 2 * layers * kv_heads * head_dim * value_bytes


def _count(config_path: str, fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError("--model-config", config_path, f"{name} to be a whole number above 0, not {value!r}")
    return value
