"""What workloads are made of: prompts that grow, and sessions that take turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random


@dataclass(slots=True)
class Source:
    """Where the sessions of one workload draw from: chance, and numbers for blocks."""

    rng: Random
    block_tokens: int
    next_hash: Iterator[int] = field(default_factory=count)

    def tokens(self, median: float, spread: float) -> int:
        """Draw a length: log-normal, at least one."""
        return max(1, round(self.rng.lognormvariate(math.log(median), spread)))

    def seconds(self, median: float, spread: float) -> float:
        """Draw a pause: log-normal."""
        return self.rng.lognormvariate(math.log(median), spread)


class Prompt:
    """A text that grows. Its full blocks keep their hashes; the last one, partly filled, changes with every token."""

    def __init__(self, source: Source, begin: Prompt | None = None) -> None:
        """`begin` is what it begins with: blocks that are full there are shared."""
        self._source = source
        self._hashes: list[int] = list(begin._hashes) if begin else []
        self.tokens: int = begin.tokens if begin else 0

    def grow(self, tokens: int) -> None:
        """Append so many tokens of new text."""
        self.tokens += tokens
        while len(self._hashes) < self.tokens // self._source.block_tokens:
            self._hashes.append(next(self._source.next_hash))

    def hashes(self) -> tuple[int, ...]:
        """Return the hashes of all blocks."""
        partly_filled = self.tokens % self._source.block_tokens
        return (*self._hashes, next(self._source.next_hash)) if partly_filled else tuple(self._hashes)


@dataclass(slots=True)
class Turn:
    """One request of a session."""

    pause_s: float
    """Time since the session's last request."""
    hashes: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int


Session = Iterator[Turn]
Sessions = Callable[[Source], Iterator[Session]]
"""Yields sessions without end, in the order in which they begin."""


def turn(prompt: Prompt, output_tokens: int, pause_s: float = 0.0) -> Turn:
    """Ask with what a prompt is now, and let it grow by the answer."""
    asked = Turn(pause_s, prompt.hashes(), prompt.tokens, output_tokens)
    prompt.grow(output_tokens)
    return asked
