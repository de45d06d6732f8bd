"""Packages that some things need and kvtide does without, by the extras of pyproject.toml; and how to get them."""

from __future__ import annotations

import shlex

PACKAGES = {
    "encryption": "cryptography>=42",
    "mooncake": "mooncake-transfer-engine-non-cuda>=0.3.13",
    "plot": "matplotlib>=3.8",
    "valkey": "valkey>=6.1",
    "vllm": "vllm>=0.24,<0.33",
}


def install(extra: str) -> str:
    """Return the command. It names the package and not kvtide's extra: who has a clone would not get that from PyPI."""
    return f"pip install {shlex.quote(PACKAGES[extra])}"
