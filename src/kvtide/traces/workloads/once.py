"""Prompts that never come back: translations, classifications, batches."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.traces.workloads.base import Prompt, Session, Source, Turn, turn


def once(source: Source) -> Iterator[Session]:
    """Yield single requests."""
    while True:
        yield _request(source)


def _request(source: Source) -> Iterator[Turn]:
    prompt = Prompt(source)
    prompt.grow(source.tokens(4000, 1.0))
    yield turn(prompt, source.tokens(150, 0.8))
