"""The models of these tests: small, random, and large enough in their weights for a wrong block to show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from kvtide.demo import random_model
from kvtide.demo.random_model import LLAMA_NORMS, Shape


def write_llama(path: Path, **sizes: int) -> Path:
    """Write a Llama-shaped model: full attention everywhere."""
    return random_model.write_llama(path, Shape(**sizes))


def write_eagle_head(path: Path) -> Path:
    """Write an EAGLE head of random weights for `write_llama`: nearly all of its guesses are refused."""
    shape = Shape(layers=1)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    random_model.write_model(path, shape, config, norms=("post_attention_layernorm",))
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(path / "model.safetensors").items()}
    del tensors["embed_tokens.weight"], tensors["norm.weight"]  # those of the model are used
    random = torch.Generator().manual_seed(8)
    tensors["fc.weight"] = torch.randn(shape.hidden, 2 * shape.hidden, generator=random) * 0.15
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def write_mimo(path: Path, *, layers: int = 4) -> Path:
    """Write a MiMo-shaped model: full attention everywhere, and a last layer that guesses tokens (MTP)."""
    shape = Shape(layers=layers, heads=2, kv_heads=2)
    config = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",  # transformers does not know MiMo, whose configuration is that of Qwen 2
        "hidden_act": "silu",
        "num_nextn_predict_layers": 1,
    }
    random_model.write_model(path, shape, config, norms=LLAMA_NORMS)
    tensors = load_file(path / "model.safetensors")
    random = torch.Generator().manual_seed(9)
    for layer in range(layers):
        for name in ("q_proj", "k_proj", "v_proj"):
            tensors[f"model.layers.{layer}.self_attn.{name}.bias"] = torch.randn(shape.hidden, generator=random) * 0.15
    guessing = "model.mtp_layers.0."
    first = {name: tensor for name, tensor in tensors.items() if name.startswith("model.layers.0.")}
    for name, tensor in first.items():
        tensors[name.replace("model.layers.0.", guessing)] = tensor.flip(0)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        tensors[f"{guessing}{name}.weight"] = torch.ones(shape.hidden)
    tensors[guessing + "input_proj.weight"] = torch.randn(shape.hidden, 2 * shape.hidden, generator=random) * 0.15
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return path


def write_lora(path: Path, seed: int, *, layers: int = 4, rank: int = 4) -> Path:
    """Write an adapter for `write_llama` that changes its keys and values."""
    shape = Shape(layers=layers)
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for name in ("k_proj", "v_proj"):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, shape.hidden, generator=random) * 0.3
            rows = shape.kv_heads * shape.head_size
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(rows, rank, generator=random) * 0.3
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": ["k_proj", "v_proj"],
        "bias": "none",
    }
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def write_gemma3(path: Path, *, layers: int = 6, window: int = 64) -> Path:
    """Write a Gemma-3-shaped model: two sliding layers for each full one."""
    shape = Shape(layers=layers)
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": shape.head_size,
        "sliding_window": window,
        "layer_types": ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(layers)],
    }
    norms = (*LLAMA_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return random_model.write_model(path, shape, config, norms=norms, head_norms=("q_norm", "k_norm"))


SMALL_LFM2 = Shape(layers=4, heads=2, kv_heads=2)


LFM2_ARGS: Mapping[str, Any] = {
    "blocks": 64,
    "max_num_batched_tokens": 256,
    "enable_prefix_caching": True,
    "mamba_cache_mode": "align",
}
"""With which vLLM keeps its states."""


def write_lfm2(path: Path, shape: Shape = SMALL_LFM2) -> Path:
    """Write an LFM2-shaped model: short convolutions, whose state vLLM keeps like Mamba's, and full attention.

    Mamba 2 itself does not run on the CPU build of 0.32: its prefill raises an IndexError with prefix caching.
    """
    layers = shape.layers
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "norm_eps": 1e-5,
        "layer_types": ["full_attention" if i % 2 else "conv" for i in range(layers)],
        "conv_L_cache": 3,
        "conv_bias": False,
        "conv_dim": shape.hidden,
        "conv_dim_out": shape.hidden,
        "block_dim": shape.hidden,
        "block_ff_dim": shape.mlp,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    }
    random = torch.Generator().manual_seed(7)

    def weight(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=random) * 0.25 * (64 / shape.hidden) ** 0.5

    hidden, kv = shape.hidden, shape.kv_heads * shape.head_size
    tensors = {
        "model.embed_tokens.weight": weight(shape.vocab, hidden),
        "model.embedding_norm.weight": torch.ones(hidden),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "operator_norm.weight"] = torch.ones(hidden)
        tensors[prefix + "ffn_norm.weight"] = torch.ones(hidden)
        tensors[prefix + "feed_forward.w1.weight"] = weight(shape.mlp, hidden)
        tensors[prefix + "feed_forward.w3.weight"] = weight(shape.mlp, hidden)
        tensors[prefix + "feed_forward.w2.weight"] = weight(hidden, shape.mlp)
        if layer % 2:
            for name, rows in (("q_proj", hidden), ("k_proj", kv), ("v_proj", kv), ("out_proj", hidden)):
                tensors[f"{prefix}self_attn.{name}.weight"] = weight(rows, hidden)
            for name in ("q_layernorm", "k_layernorm"):
                tensors[f"{prefix}self_attn.{name}.weight"] = torch.ones(shape.head_size)
        else:
            tensors[prefix + "conv.in_proj.weight"] = weight(3 * hidden, hidden)
            tensors[prefix + "conv.out_proj.weight"] = weight(hidden, hidden)
            tensors[prefix + "conv.conv.weight"] = weight(hidden, 1, 3)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps({**shape.config(), **config}))
    return path
