"""Conversations from a seed: how long each turn is, when it comes, and how long its user thinks.

A definition of vLLM's own multi-turn benchmark (`benchmarks/multi_turn` in its repository) can be used instead of the
usual lengths: the same distributions, with random tokens instead of text. `multi_turn.json` has the numbers of the one
that vLLM comes with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Turn:
    """One question."""

    tokens: list[int]
    """What is new since the answer before."""
    answer_tokens: int
    think_s: float
    """From the answer before (the first one: from the beginning of everything) to this question."""


@dataclass(frozen=True)
class Lengths:
    """How long things are, each drawn for itself. See `draw_number` for what they look like."""

    conversations: int
    turns: Mapping[str, Any]
    common_tokens: Mapping[str, Any]
    """In front of all conversations."""
    first_tokens: Mapping[str, Any]
    """In front of the first question of one conversation."""
    question_tokens: Mapping[str, Any]
    """Of one question. The tokens that all conversations begin with count for the first one."""
    answer_tokens: Mapping[str, Any]
    scale: float = 1.0
    """So much longer is everything, but there are as many turns."""

    def draw_tokens(self, draw: Random, what: Mapping[str, Any]) -> int:
        """Draw how many tokens something has."""
        return round(self.scale * draw_number(draw, what))


def constant(value: int) -> dict[str, Any]:
    """Return the distribution of what is always the same."""
    return {"distribution": "constant", "value": value}


def uniform(low: int, high: int) -> dict[str, Any]:
    """Return the distribution of whole numbers from `low` to `high`."""
    return {"distribution": "uniform", "min": low, "max": high}


USUAL = Lengths(32, constant(4), constant(0), uniform(4_000, 12_000), constant(300), constant(64))
SMALL = Lengths(4, constant(3), constant(0), uniform(96, 200), constant(40), constant(8))


def from_definition(path: Path, scale: float = 1.0) -> Lengths:
    """Read a definition of vLLM's multi-turn benchmark. Its turns are messages, so two of them are one of ours."""
    definition = json.loads(path.read_text())
    asked, answered = definition["prompt_input"], definition["prompt_output"]
    return Lengths(
        definition["num_conversations"],
        {"halved": asked["num_turns"]},
        asked.get("common_prefix_num_tokens", constant(0)),
        asked["prefix_num_tokens"],
        asked["num_tokens"],
        answered["num_tokens"],
        scale,
    )


def draw_number(draw: Random, what: Mapping[str, Any]) -> int:
    """Draw a whole number of at least 0 from a distribution as definitions have it."""
    if "halved" in what:
        return max(1, (draw_number(draw, what["halved"]) + 1) // 2)  # each question has an answer
    kind = what["distribution"]
    if kind == "constant":
        return int(what["value"])
    if kind == "uniform":
        return draw.randint(int(what["min"]), int(what["max"]))
    more = np.random.default_rng(draw.getrandbits(64))
    if kind == "zipf":
        drawn = int(more.zipf(float(what["alpha"])))
    elif kind == "poisson":
        drawn = int(more.poisson(float(what["alpha"])))
    elif kind == "lognormal":
        drawn = round(more.lognormal(*_lognormal(what)))
    else:
        raise ValueError(f"a distribution {kind!r}: expected constant, uniform, zipf, poisson or lognormal")
    return max(0, min(drawn, int(what.get("max", drawn))))


def _lognormal(what: Mapping[str, Any]) -> tuple[float, float]:
    """Return mean and deviation of the logarithm: as given, or from the mean and how much of it the median is."""
    if "average" not in what:
        return float(what["mean"]), float(what["sigma"])
    ratio = float(what.get("median_ratio", 0.85))
    return math.log(ratio * float(what["average"])), math.sqrt(-2 * math.log(ratio))


def conversations(lengths: Lengths, seed: int, vocab: int, *, spacing_s: float, think_s: float) -> list[list[Turn]]:
    """Return all conversations. One comes `spacing_s` after the other in the mean, as users come: at random."""
    draw = Random(seed)  # noqa: S311 (not for secrets)
    shared = tokens(draw, lengths.draw_tokens(draw, lengths.common_tokens), vocab)
    all_turns: list[list[Turn]] = []
    comes_s = 0.0
    for _ in range(lengths.conversations):
        count = draw_number(draw, lengths.turns)
        turns: list[Turn] = []
        for number in range(count):
            before = [] if number else shared
            own = 0 if number else lengths.draw_tokens(draw, lengths.first_tokens)
            new = [*before, *tokens(draw, own, vocab)]
            new += tokens(draw, max(1, lengths.draw_tokens(draw, lengths.question_tokens) - len(before)), vocab)
            answer = max(2, lengths.draw_tokens(draw, lengths.answer_tokens))
            turns.append(Turn(new, answer, draw.expovariate(1 / think_s) if number else comes_s))
        all_turns.append(turns)
        comes_s += draw.expovariate(1 / spacing_s)
    return all_turns


def tokens(draw: Random, count: int, vocab: int) -> list[int]:
    """Return random tokens, none of them special."""
    return draw.choices(range(2, vocab), k=count)


def longest_tokens(everything: list[list[Turn]]) -> int:
    """Return the tokens of the longest conversation, its last answer included."""
    return max(sum(len(turn.tokens) + turn.answer_tokens for turn in turns) for turns in everything)


def all_tokens(everything: list[list[Turn]]) -> int:
    """Return the tokens of all conversations together."""
    return sum(len(turn.tokens) + turn.answer_tokens for turns in everything for turn in turns)
