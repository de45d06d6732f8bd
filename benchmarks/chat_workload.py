"""Conversations from a seed: how long each turn is, when it comes, and how long its user thinks.

A definition file of vLLM's own multi-turn benchmark (`generate_multi_turn.json` in its repository) can be used instead
of the usual lengths: the same distributions, with random tokens instead of text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any


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
    answer_tokens: Mapping[str, Any]


def constant(value: int) -> dict[str, Any]:
    """Return the distribution of what is always the same."""
    return {"distribution": "constant", "value": value}


def uniform(low: int, high: int) -> dict[str, Any]:
    """Return the distribution of whole numbers from `low` to `high`."""
    return {"distribution": "uniform", "min": low, "max": high}


USUAL = Lengths(32, constant(4), constant(0), uniform(4_000, 12_000), constant(300), constant(64))
SMALL = Lengths(4, constant(3), constant(0), uniform(96, 200), constant(40), constant(8))


def from_definition(path: Path) -> Lengths:
    """Read a definition of vLLM's multi-turn benchmark. Its turns are messages, so two of them are one of ours."""
    definition = json.loads(path.read_text())
    asked, answered = definition["prompt_input"], definition["prompt_output"]
    return Lengths(
        definition["num_conversations"],
        {"halved": asked["num_turns"]},
        asked["common_prefix_num_tokens"],
        asked["prefix_num_tokens"],
        asked["num_tokens"],
        answered["num_tokens"],
    )


def draw_number(draw: Random, what: Mapping[str, Any]) -> int:
    """Draw a whole number of at least 0 from a distribution as definitions have it."""
    if "halved" in what:
        return max(1, draw_number(draw, what["halved"]) // 2)
    kind = what["distribution"]
    if kind == "constant":
        return int(what["value"])
    if kind == "uniform":
        return draw.randint(int(what["min"]), int(what["max"]))
    if kind == "zipf":
        drawn = int(draw.paretovariate(float(what["alpha"])))
    elif kind == "poisson":
        drawn = round(draw.gauss(float(what["alpha"]), math.sqrt(float(what["alpha"]))))
    elif kind == "lognormal" and "average" in what:  # the median is half of the mean, as vLLM's has it
        mean = math.log(float(what["average"]) * 0.5)
        drawn = round(draw.lognormvariate(mean, math.sqrt(2 * math.log(2))))
    elif kind == "lognormal":
        drawn = round(draw.lognormvariate(float(what["mean"]), float(what["sigma"])))
    else:
        raise ValueError(f"a distribution {kind!r}: expected constant, uniform, zipf, poisson or lognormal")
    return max(0, min(drawn, int(what.get("max", drawn))))


def conversations(lengths: Lengths, seed: int, vocab: int, *, spacing_s: float, think_s: float) -> list[list[Turn]]:
    """Return all conversations. One comes `spacing_s` after the other in the mean, as users come: at random."""
    draw = Random(seed)  # noqa: S311 (not for secrets)
    shared = tokens(draw, draw_number(draw, lengths.common_tokens), vocab)
    all_turns: list[list[Turn]] = []
    comes_s = 0.0
    for _ in range(lengths.conversations):
        count = draw_number(draw, lengths.turns)
        turns: list[Turn] = []
        for number in range(count):
            new = [] if number else [*shared, *tokens(draw, draw_number(draw, lengths.first_tokens), vocab)]
            new += tokens(draw, max(1, draw_number(draw, lengths.question_tokens)), vocab)
            answer = max(2, draw_number(draw, lengths.answer_tokens))
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
