"""The requests of a world: when they come, what they ask, which of them are aborted."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.sim.draw import Draw
from kvtide.sim.tokens import ROOT, VOCABULARY, Tokens

SPARE_TOKENS = 2
"""Tokens that are known beyond the end of a request: asynchronous scheduling computes some in vain."""


_KINDS = ("next turn", "next turn", "again", "again", "document", "document", "document", "new")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that will come."""

    name: str
    at_step: int
    nodes: tuple[int, ...]
    """`nodes[n]` is the sequence of its first `n` tokens, prompt and output."""
    prompt_tokens: int
    total_tokens: int
    foreseen: bool
    """Whether the engine knows in advance where it ends (a limit, not a stop token)."""
    abort_after_steps: int | None
    """Steps from its arrival to its abort, if it is not over by then."""
    keyed_tokens: int
    """Blocks that end behind this have no key: the engine does not want them cached."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the traffic of a world looks."""

    requests: int
    prompt_tokens_max: int
    output_tokens_max: int
    gap_steps_max: int
    idle_chance: int
    abort_chance: int
    unkeyed_chance: int


def draw_shape(draw: Draw) -> Shape:
    """Draw how many requests come, how long they are and how dense."""
    return Shape(
        requests=draw.between(3, 30),
        prompt_tokens_max=draw.between(4, 28),
        output_tokens_max=draw.pick((1, 4, 12)),
        gap_steps_max=draw.pick((0, 3, 8, 16)),
        idle_chance=draw.pick((0, 0, 40)),
        abort_chance=draw.pick((0, 0, 40, 100)),
        unkeyed_chance=draw.pick((0, 0, 0, 20)),
    )


def draw_traffic(draw: Draw, shape: Shape, tokens: Tokens) -> tuple[Arrival, ...]:
    """Draw all requests of a world."""
    documents = [_lengthen(draw, tokens, [ROOT], shape.prompt_tokens_max) for _ in range(draw.between(1, 3))]
    arrivals: list[Arrival] = []
    step = 0
    for index in range(shape.requests):
        prompt = _prompt(draw, tokens, shape, documents, arrivals)
        nodes = list(prompt)
        outputs = draw.between(1, shape.output_tokens_max)
        for _ in range(outputs + SPARE_TOKENS):
            nodes.append(tokens.generated(nodes[-1]))
        arrivals.append(
            Arrival(
                name=f"r{index}",
                at_step=step,
                nodes=tuple(nodes),
                prompt_tokens=len(prompt) - 1,
                total_tokens=len(prompt) - 1 + outputs,
                foreseen=draw.chance(128),
                abort_after_steps=draw.skewed(0, 30) if draw.chance(shape.abort_chance) else None,
                keyed_tokens=draw.below(len(nodes)) if draw.chance(shape.unkeyed_chance) else len(nodes),
            )
        )
        step += draw.between(0, shape.gap_steps_max)
        if draw.chance(shape.idle_chance):
            step += draw.between(20, 60)
    return tuple(arrivals)


def _prompt(draw: Draw, tokens: Tokens, shape: Shape, documents: list[list[int]], before: list[Arrival]) -> list[int]:
    """Draw a prompt: new, with the beginning of a document, the same as before, or going on where one ended."""
    limit = shape.prompt_tokens_max
    kind = draw.pick(_KINDS) if before else "document"
    if kind == "next turn":
        earlier = draw.pick(before)
        nodes = list(earlier.nodes[: min(earlier.total_tokens, limit) + 1])
        return _lengthen(draw, tokens, nodes, min(limit, len(nodes) + draw.below(6)))
    if kind == "again":
        earlier = draw.pick(before)
        return list(earlier.nodes[: earlier.prompt_tokens + 1])
    if kind == "document":
        document = draw.pick(documents)
        nodes = document[: draw.between(1, len(document))]
        return _lengthen(draw, tokens, nodes, draw.between(1, limit))
    return _lengthen(draw, tokens, [ROOT], draw.between(1, limit))


def _lengthen(draw: Draw, tokens: Tokens, nodes: list[int], length: int) -> list[int]:
    """Return `nodes` with random tokens behind it, so that it has at least one token and up to `length`."""
    nodes = list(nodes)
    while len(nodes) <= max(1, length):
        nodes.append(tokens.after(nodes[-1], draw.below(VOCABULARY)))
    return nodes
