"""Small models of random weights, as checkpoints that vLLM loads: for the demo and for tests.

The weights are large enough (standard deviation 0.1 to 0.3) for a wrong KV block to change the output.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model."""

    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    mlp: int = 128
    vocab: int = 512
    max_tokens: int = 4096

    def config(self) -> dict[str, Any]:
        """Return what all model families call the same."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_tokens,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }


def write_llama(path: Path, shape: Shape) -> Path:
    """Write a Llama-shaped model: full attention everywhere."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    return write_model(path, shape, config, norms=LLAMA_NORMS)


def write_model(
    path: Path, shape: Shape, config: dict[str, Any], *, norms: Sequence[str], head_norms: Sequence[str] = ()
) -> Path:
    """Write a model of decoder layers: attention, a gated MLP, and the norms that its family has."""
    random = torch.Generator().manual_seed(7)
    scale = 0.15 * (64 / shape.hidden) ** 0.5

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * scale

    tensors = {
        "model.embed_tokens.weight": weight(shape.vocab, shape.hidden) * 2,
        "model.norm.weight": torch.ones(shape.hidden),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        tensors[attention + "q_proj.weight"] = weight(shape.heads * shape.head_size, shape.hidden)
        tensors[attention + "k_proj.weight"] = weight(shape.kv_heads * shape.head_size, shape.hidden)
        tensors[attention + "v_proj.weight"] = weight(shape.kv_heads * shape.head_size, shape.hidden)
        tensors[attention + "o_proj.weight"] = weight(shape.hidden, shape.heads * shape.head_size)
        for name in head_norms:
            tensors[f"{attention}{name}.weight"] = torch.ones(shape.head_size)
        tensors[prefix + "mlp.gate_proj.weight"] = weight(shape.mlp, shape.hidden)
        tensors[prefix + "mlp.up_proj.weight"] = weight(shape.mlp, shape.hidden)
        tensors[prefix + "mlp.down_proj.weight"] = weight(shape.hidden, shape.mlp)
        for name in norms:
            tensors[f"{prefix}{name}.weight"] = torch.ones(shape.hidden)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps({**shape.config(), **config}))
    return path
