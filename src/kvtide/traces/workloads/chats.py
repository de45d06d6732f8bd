"""People who chat: a common system prompt, a few turns, pauses of a minute or two."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.traces.workloads.base import Prompt, Session, Source, Turn, turn

SYSTEM_TOKENS = 700
GOES_ON = (0.4, 0.5, 0.6, 0.7)
"""Chance that another turn follows, by turn: who came back once is likely to come back again."""


def chats(source: Source) -> Iterator[Session]:
    """Yield conversations."""
    system = Prompt(source)
    system.grow(SYSTEM_TOKENS)
    while True:
        yield _chat(source, system)


def _chat(source: Source, system: Prompt) -> Iterator[Turn]:
    prompt = Prompt(source, system)
    prompt.grow(source.tokens(1500, 1.2))
    yield turn(prompt, source.tokens(300, 0.7))
    turns = 0
    while source.rng.random() < GOES_ON[min(turns, len(GOES_ON) - 1)]:
        turns += 1
        prompt.grow(source.tokens(60, 0.8))
        yield turn(prompt, source.tokens(300, 0.7), source.seconds(110, 0.9))
