"""Agents with tools: long shared instructions, many quick steps, each of which appends a tool's answer."""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.traces.workloads.base import Prompt, Session, Source, Turn, turn

AGENTS = 4
INSTRUCTION_TOKENS = 5000
LAST_STEP = 0.08
"""Chance that a step is the last one."""


def agents(source: Source) -> Iterator[Session]:
    """Yield tasks."""
    instructions = []
    for _ in range(AGENTS):
        prompt = Prompt(source)
        prompt.grow(source.tokens(INSTRUCTION_TOKENS, 0.4))
        instructions.append(prompt)
    while True:
        yield _task(source, source.rng.choice(instructions))


def _task(source: Source, instructions: Prompt) -> Iterator[Turn]:
    prompt = Prompt(source, instructions)
    prompt.grow(source.tokens(400, 0.8))
    yield turn(prompt, source.tokens(120, 0.5))
    while source.rng.random() >= LAST_STEP:
        prompt.grow(source.tokens(700, 1.0))
        yield turn(prompt, source.tokens(120, 0.5), source.seconds(6, 0.8))
