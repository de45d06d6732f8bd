"""Models, and what they say without a connector."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from vllm.config.logging import LoggingConfig
from vllm.logger import configure_logging_if_needed

from tests.vllm.engines import Control
from tests.vllm.llm import Result, engine, prompt
from tests.vllm.models import write_gemma3, write_llama

__all__ = ["control", "gemma", "gemma_says", "llama", "llama_says", "one_head", "vllm_log"]

Says = Callable[..., list[Result]]

LENGTHS = (100, 200, 300, 400, 500, 600)
PROMPTS = [prompt(seed, length) for seed, length in enumerate(LENGTHS * 2)]
MOST_TOKENS = 24


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def one_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which two ranks hold the same KV."""
    return write_llama(tmp_path_factory.mktemp("one-head"), kv_heads=1)


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma3(tmp_path_factory.mktemp("gemma"))


def _says(model: Path, blocks: int) -> Says:
    """Run all prompts once without a connector; answers are looked up."""
    with engine(model, None, blocks=blocks) as plain:
        answers = plain.generate(*PROMPTS, max_tokens=MOST_TOKENS)
    known = {tuple(tokens): answer for tokens, answer in zip(PROMPTS, answers, strict=True)}

    def says(*prompts: Sequence[int], max_tokens: int = 4) -> list[Result]:
        found = [known[tuple(tokens)] for tokens in prompts]
        return [Result(each.tokens[:max_tokens], each.logprobs[:max_tokens], 0) for each in found]

    return says


@pytest.fixture(scope="session")
def llama_says(llama: Path) -> Says:
    return _says(llama, blocks=64)


@pytest.fixture(scope="session")
def gemma_says(gemma: Path) -> Says:
    return _says(gemma, blocks=128)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Control:
    """Copies that do as they are told."""
    control = Control()
    monkeypatch.setattr("kvtide.vllm.kv_tensors.make_copy_engine", control.make)
    return control


@pytest.fixture
def vllm_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """What an operator reads: all that reaches vLLM's own logger."""
    configure_logging_if_needed(LoggingConfig())  # or the first engine of this process does, and takes us off
    vllm = logging.getLogger("vllm")
    monkeypatch.setattr(vllm, "propagate", False)  # as vLLM has it once it is configured
    vllm.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "vllm"):
        yield caplog
    vllm.removeHandler(caplog.handler)
