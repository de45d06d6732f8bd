"""Advice where a node keeps host memory: for a server that uses one, and for the node itself.

The server does not know how full that memory is, the node knows neither what devices have nor what engines compute.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvtide.top.advice import Advice
from kvtide.top.evidence import FULL, NOTABLE, TOKENS_MIN
from kvtide.top.figures import Figures, SpaceTraffic
from kvtide.top.state import Node, Space, State
from kvtide.units import how_many, percent_text, seconds_text

_LOST = (
    ("node_away", "Find out why the node was away: its log and the server's say.", "the node was away"),
    ("node_late", "See whether the node's machine is overloaded.", "the node, or its memory, came too late"),
    (
        "leases_full",
        "Give the node more memory (`--memory`), unless `kvtide node status` shows leases of an engine that rests.",
        "an engine had leased all that it may of the node's memory",
    ),
)
"""Reasons why tokens are not loaded: what to do, and why they were computed."""


def lost_at_node(shown: Figures, _now: State) -> Iterator[Advice]:
    """What the node had, or might have had, did not come."""
    for why, do, because in _LOST:
        if (share := shown.not_loaded.get(why, 0.0) / shown.tokens.all) >= NOTABLE:
            said = f"{percent_text(share)} of prompt tokens were computed because {because}."
            yield Advice("node", do, said, {f"{why}_share": share})


def ask_the_node(shown: Figures) -> Advice:
    """Return what is said to a server with which all is well."""
    computed = shown.tokens.share("computed") or 0.0
    return Advice(
        "nothing",
        "Leave this server as it is. About memory ask its node: `kvtide advise` at the port of its `--metrics`, or "
        "`kvtide node status`.",
        f"Host memory is the node's. {percent_text(computed)} of prompt tokens were computed.",
        {"computed_share": computed},
    )


def memory_of_node(shown: Figures, now: State) -> Iterator[Advice]:
    """The memory of a model is full, and loses blocks while it finds others."""
    assert now.node is not None
    if now.node.tiers:
        return  # what has left memory is found again there, and counters do not tell how much of it
    losing = [name for name, traffic in shown.spaces.items() if _is_full(now.node, name) and _loses(traffic)]
    if not losing:
        return
    name = max(losing, key=lambda name: shown.spaces[name].evicted_blocks)
    space, traffic = now.node.namespaces[name], shown.spaces[name]
    evicted, found, missing = traffic.evicted_blocks, _found(traffic), _missing(traffic)
    because = (
        f"The memory of {space.model} is full, and it evicted {how_many(evicted, 'block')}"
        f"{_age(shown, space, evicted)}. "
        f"{percent_text(found)} of what was looked up was found there and {percent_text(missing)} was not, of which "
        "some was probably evicted before. Counters do not tell how much: `kvtide plan` with a trace does."
    )
    numbers = {"fill": space.fill or 0.0, "evicted_blocks": evicted, "found_share": found, "not_cached_share": missing}
    yield Advice("memory", "More memory (`--memory`, `--share`) probably helps.", because, numbers)
    yield Advice("tier", "Or put a disk or a shared store below it (`--tier`).", because, {**numbers})


def _loses(traffic: SpaceTraffic) -> bool:
    enough = traffic.asked_tokens >= TOKENS_MIN
    return enough and traffic.evicted_blocks > 0 and min(_found(traffic), _missing(traffic)) >= NOTABLE


def _age(shown: Figures, space: Space, evicted: float) -> str:
    rate = shown.rate(evicted)
    return f": one stays for {seconds_text(space.slots / rate)}" if rate else ""


def node_is_well(shown: Figures, now: State) -> Advice:
    """Return what is said to a node with which all is well."""
    assert now.node is not None
    name = _busiest(shown, now.node)
    space = None if name is None else now.node.namespaces[name]
    evicted = _evicted(shown, name)
    missing = shown.not_loaded.get("not_cached", 0.0) / shown.tokens.all
    fill = 0.0 if space is None else space.fill or 0.0
    if space is None or fill < FULL:
        why = f"No model fills more than {percent_text(fill)} of its memory: more would hold nothing more."
    elif not evicted:
        why = f"The memory of {space.model} is full, and nothing was evicted."
    elif now.node.tiers:
        why = (
            f"The memory of {space.model} is full, and what leaves it is still in the tiers as long as they have room."
        )
    else:
        why = f"The memory of {space.model} evicts, and nothing shows that what it evicts is asked for again."
    return Advice(
        "nothing",
        "Leave it as it is.",
        f"{why} {percent_text(missing)} of what was looked up was not there.",
        {"fill": fill, "not_cached_share": missing, "evicted_blocks": evicted},
    )


def _busiest(shown: Figures, node: Node) -> str | None:
    """Return the namespace that lost most of those that are full, or fills most of its memory if none is.

    Of those that engines use, if there are any.
    """

    def pressed(name: str) -> tuple[float, float]:
        return (_evicted(shown, name) if _is_full(node, name) else -1.0), node.namespaces[name].fill or 0.0

    used = [name for name, space in node.namespaces.items() if space.engines] or list(node.namespaces)
    return max(used, key=pressed, default=None)


def _is_full(node: Node, name: str) -> bool:
    space = node.namespaces.get(name)
    return space is not None and (space.fill or 0.0) >= FULL


def _evicted(shown: Figures, name: str | None) -> float:
    return shown.spaces[name].evicted_blocks if name in shown.spaces else 0.0


def _found(traffic: SpaceTraffic) -> float:
    return traffic.found_tokens / traffic.asked_tokens


def _missing(traffic: SpaceTraffic) -> float:
    return traffic.missing_tokens / traffic.asked_tokens
