"""A small trained model as a folder that vLLM loads, in bfloat16, made of its GGUF file. Needs nothing but numpy."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gguf_file import Floats, Gguf
from real_model import Bits, bf16

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_folder(file: Path, folder: Path) -> None:
    """Write configuration and weights. There is no tokenizer: see `real_model.Tokenizer`."""
    gguf = Gguf(file)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(gguf)))
    _write_safetensors(folder / "model.safetensors", dict(_weights(gguf)))


def _config(gguf: Gguf) -> dict[str, object]:
    about = gguf.about
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": about["llama.embedding_length"],
        "intermediate_size": about["llama.feed_forward_length"],
        "num_hidden_layers": about["llama.block_count"],
        "num_attention_heads": about["llama.attention.head_count"],
        "num_key_value_heads": about["llama.attention.head_count_kv"],
        "head_dim": about["llama.rope.dimension_count"],
        "vocab_size": about["llama.vocab_size"],
        "max_position_embeddings": about["llama.context_length"],
        "rms_norm_eps": about["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": about["llama.rope.freq_base"],
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": about["tokenizer.ggml.bos_token_id"],
        "eos_token_id": about["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "bfloat16",
    }


def _weights(gguf: Gguf) -> Iterator[tuple[str, Bits]]:
    yield "model.embed_tokens.weight", bf16(gguf["token_embd.weight"])
    yield "model.norm.weight", bf16(gguf["output_norm.weight"])
    heads = {
        "attn_q": gguf.about["llama.attention.head_count"],
        "attn_k": gguf.about["llama.attention.head_count_kv"],
    }
    for layer in range(gguf.about["llama.block_count"]):
        for name, called in _LAYER.items():
            weight = gguf[f"blk.{layer}.{name}.weight"]
            if name in heads:
                weight = _unwoven(weight, heads[name])
            yield f"model.layers.{layer}.{called}.weight", bf16(weight)


def _unwoven(weight: Floats, heads: int) -> Floats:
    """Lay the two halves that RoPE turns against each other side by side: GGUF has them woven into one another."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _write_safetensors(path: Path, tensors: dict[str, Bits]) -> None:
    described, end = {}, 0
    for name, bits in tensors.items():
        described[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [end, end + bits.nbytes]}
        end += bits.nbytes
    header = json.dumps(described).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        for bits in tensors.values():
            out.write(np.ascontiguousarray(bits).tobytes())
