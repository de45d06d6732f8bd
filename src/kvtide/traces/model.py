"""A model as far as planning wants to know it: bytes of KV per token, parameters, weights; from its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtide.errors import ConfigError
from kvtide.traces.layer import Layer, dense_layer
from kvtide.traces.layer_kinds import PartlyFull, partly_full
from kvtide.traces.parameters import count_parameters

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "fp8": 1, "int8": 1}
_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class Model:
    """What a token and the weights take."""

    name: str
    bytes_per_token: int
    """Of KV."""
    parameters: float | None
    """All of them. None: its configuration does not tell."""
    active_parameters: float | None
    """Those that a token is multiplied with: of a mixture of experts only a part."""
    weight_bytes: float | None
    layer: Layer | None = None
    """What it is made of, if that is known and dense."""
    partly_full: PartlyFull | None = None
    """Not all layers are full attention. `bytes_per_token` is as if they were."""
    dtype: str = "bfloat16"


DEFAULT_MODEL = Model("Llama-3.1-8B", 131_072, 8.03e9, 8.03e9, 16.06e9, Layer(32, 4096, 32, 8, 128, 14_336))
"""32 layers, 8 KV heads of 128 values, 16 bits."""


def read_model(config_path: str) -> Model:
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
    said = (each.get(name) for each in (fields, config) for name in ("torch_dtype", "dtype"))
    dtype = str(next(filter(None, said), "bfloat16")).removeprefix("torch.")
    value_bytes = _DTYPE_BYTES.get(dtype, 2)
    parameters, active = count_parameters(fields) or (None, None)
    return Model(
        _name(config, config_path),
        _bytes_per_token(config_path, fields, value_bytes),
        parameters,
        active,
        None if parameters is None else parameters * _weight_bytes(config, value_bytes),
        dense_layer(fields),
        partly_full(fields, _count(config_path, fields, "num_hidden_layers")),
        dtype,
    )


def _name(config: Mapping[str, object], config_path: str) -> str:
    name = config.get("_name_or_path") or config.get("model_type")
    return name if isinstance(name, str) and name else Path(config_path).name


def _weight_bytes(config: Mapping[str, object], value_bytes: float) -> float:
    """Return the bytes of one parameter: fewer than usual if the weights are quantised in a way that says so."""
    quantised = config.get("quantization_config")
    if not isinstance(quantised, dict):
        return value_bytes
    bits = quantised.get("bits")
    if isinstance(bits, int) and not isinstance(bits, bool) and bits > 0:
        return bits / _BITS_PER_BYTE
    return 1 if "fp8" in str(quantised.get("quant_method")) else value_bytes


def _bytes_per_token(config_path: str, fields: Mapping[str, object], value_bytes: int) -> int:
    layers = _count(config_path, fields, "num_hidden_layers")
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
