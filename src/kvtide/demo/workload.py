"""Conversations: what users say, and how their turns follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvtide.demo.settings import DemoSettings

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One user's side of a conversation."""

    number: int
    says: tuple[Tokens, ...]
    """What the user says, turn by turn."""

    def prompt(self, replies: Sequence[Tokens]) -> list[int]:
        """Return the next turn's prompt: all that was said so far, and what the user says now."""
        tokens: list[int] = []
        for said, reply in zip(self.says, replies, strict=False):
            tokens += said
            tokens += reply
        tokens += self.says[len(replies)]
        return tokens


class Turn(NamedTuple):
    """A turn of a conversation."""

    conversation: int
    number: int
    """0 is the first."""

    @property
    def request_id(self) -> str:
        """What the engine calls it."""
        return f"conversation {self.conversation}, turn {self.number}"


def conversations(settings: DemoSettings) -> list[Conversation]:
    """Return the conversations of a demo. They depend on the settings' seed and sizes only."""
    vocab = settings.engine(settings.device_blocks).model.vocab
    sizes = [settings.prompt_tokens] + [settings.turn_tokens] * (settings.turns - 1)
    made = []
    for number in range(settings.conversations):
        rng = np.random.default_rng((settings.seed, number))
        made.append(Conversation(number, tuple(tuple(rng.integers(vocab, size=size).tolist()) for size in sizes)))
    return made


def arrivals(settings: DemoSettings) -> Iterator[list[Turn]]:
    """Yield the turns that arrive together, in the same order in every mode.

    Everybody's first turn, then everybody's second, and so on: between two turns of one conversation all the
    others had theirs, which is what drives its KV out of a small device pool.
    """
    for turn in range(settings.turns):
        for first in range(0, settings.conversations, settings.concurrency):
            last = min(first + settings.concurrency, settings.conversations)
            yield [Turn(conversation, turn) for conversation in range(first, last)]
