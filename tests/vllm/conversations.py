"""Conversations that go from engine to engine, and what an engine alone says to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.vllm.llm import BLOCK_TOKENS, Result, prompt

TURNS_TOKENS = (180, 130, 90)
"""What the user says in each turn."""
ANSWER_TOKENS = 8

Say = Callable[[Sequence[int]], Result]


@dataclass
class Conversation:
    """Its user says the same whoever answers."""

    seed: int
    history: list[int] = field(default_factory=list)
    answers: list[Result] = field(default_factory=list)

    def turn(self, say: Say) -> Result:
        """Let somebody answer the next turn."""
        number = len(self.answers)
        self.history += prompt(1000 * (self.seed + 1) + number, TURNS_TOKENS[number])
        self.answers.append(say(self.history))
        self.history += self.answers[-1].tokens
        return self.answers[-1]

    def is_like(self, other: Conversation) -> bool:
        """Whether everything that was answered is the same so far."""
        pairs = zip(self.answers, other.answers, strict=False)
        return all(mine.same_as(theirs) for mine, theirs in pairs)


def whole(seed: int, say: Say) -> Conversation:
    """Return a conversation that one engine has alone."""
    conversation = Conversation(seed)
    for _ in TURNS_TOKENS:
        conversation.turn(say)
    return conversation


def full_blocks(tokens: Sequence[int]) -> int:
    """Return how many tokens of a history are in full blocks."""
    return len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
