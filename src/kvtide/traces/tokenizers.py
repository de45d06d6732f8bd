"""Tokens of a text: by a tokenizer that the user names, or by bytes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from kvtide.traces.errors import TraceError

BYTES = "bytes"
BYTES_PER_TOKEN = 4
"""About what a token of English text takes."""

Tokenize = Callable[[str], list[int]]


def tokenizer(name: str) -> Tokenize:
    """Return a tokenizer: "bytes", a tokenizer.json, or the name of a model on the Hugging Face hub."""
    if name == BYTES:
        return by_bytes
    try:
        loader = importlib.import_module("tokenizers").Tokenizer
    except ImportError:
        raise TraceError(
            f"--tokenizer {name}: the package tokenizers is missing: pip install tokenizers, or use --tokenizer {BYTES}"
        ) from None
    try:
        loaded = loader.from_file(name) if Path(name).is_file() else loader.from_pretrained(name)
    except Exception as error:
        raise TraceError(f"--tokenizer {name}: {error}") from None
    return lambda text: list(loaded.encode(text).ids)


def by_bytes(text: str) -> list[int]:
    """Take every four bytes as a token."""
    data = text.encode()
    return [
        int.from_bytes(data[begin : begin + BYTES_PER_TOKEN], "little")
        for begin in range(0, len(data), BYTES_PER_TOKEN)
    ]
