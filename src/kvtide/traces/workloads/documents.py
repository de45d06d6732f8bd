"""Documents that many people ask about: a few are asked about often, most seldom."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.traces.workloads.base import Prompt, Session, Source, Turn, turn

DOCUMENTS = 400
DOCUMENT_TOKENS = 12_000
POPULARITY = 0.8
"""Exponent of Zipf's law."""


def documents(source: Source) -> Iterator[Session]:
    """Yield questions."""
    library: dict[int, Prompt] = {}
    weights = [1 / rank**POPULARITY for rank in range(1, DOCUMENTS + 1)]
    while True:
        [chosen] = source.rng.choices(range(DOCUMENTS), weights)
        if chosen not in library:
            library[chosen] = Prompt(source)
            library[chosen].grow(source.tokens(DOCUMENT_TOKENS, 0.7))
        yield _question(source, library[chosen])


def _question(source: Source, document: Prompt) -> Iterator[Turn]:
    prompt = Prompt(source, document)
    prompt.grow(source.tokens(50, 0.6))
    yield turn(prompt, source.tokens(200, 0.6))
