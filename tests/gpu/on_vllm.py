"""Real vLLM on a GPU, for tests that compare what was loaded with what was computed."""

from __future__ import annotations

import importlib.util
import os

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM on a GPU: Install vllm 0.32.0 beside torch.", allow_module_level=True)

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # scheduler and engine in reach of the test

from tests.vllm.llm import Engine, Result, engine, prompt

__all__ = ["Engine", "assert_close", "engine", "prompt"]

TOLERANCE = 0.05
"""TF32 and other shapes of batches move logprobs by less; a wrong block or state moves them by more than 1."""


def assert_close(found: list[Result], expected: list[Result]) -> None:
    """Compare first tokens: a later one may differ where two are as good as each other."""
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        apart = abs(mine.logprobs[0] - theirs.logprobs[0])
        assert apart < TOLERANCE, f"prompt {number}: logprobs are {apart} apart"
        assert mine.tokens[0] == theirs.tokens[0], f"prompt {number}"
