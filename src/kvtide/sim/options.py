"""World options: what people (and the shrinker) may fix in a world that is otherwise drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from kvtide.core.config import Admission
from kvtide.core.eviction import POLICIES
from kvtide.errors import ConfigError
from kvtide.options import did_you_mean
from kvtide.sim.draw import Draw
from kvtide.sim.faults import FAULT_KINDS
from kvtide.sim.layouts import LAYOUTS, draw_layout
from kvtide.sim.node.chances import RESETS_MAX, NodeWorld
from kvtide.sim.world import Habits, World, blocks_needed, blocks_to_resume_first

LAYOUT_STREAM = 2
NONE = "none"
SLOW_OFTEN = 128

Overrides = Mapping[str, str]
"""Option to value, as people write them."""

Fields = Callable[[World, Any], dict[str, Any]]
"""Returns the new values of a world's fields; raises ValueError if that is impossible."""


@dataclass(frozen=True, slots=True)
class WorldOption:
    """One thing that can be fixed."""

    what: str
    expected: str
    read: Callable[[str], object]
    """Returns what a text means; raises ValueError if it makes no sense."""
    fields: Fields | None = None
    """What that changes in a world. None: the field that is called like the option."""
    choices: Collection[str] = ()
    """The words that can be written, if there are few."""


def apply_overrides(world: World, overrides: Overrides) -> World:
    """Return the world with everything fixed that is asked for; raises ConfigError if that is impossible."""
    for name, option in WORLD_OPTIONS.items():  # in a fixed order, because some depend on others
        if name in overrides:
            value = _read(name, overrides[name])
            try:
                changes = {name: value} if option.fields is None else option.fields(world, value)
            except ValueError as error:
                raise _refusal(name, overrides[name], str(error) or option.expected) from None
            world = replace(world, **changes)
    return _made_possible(world, overrides)


def parse_overrides(texts: list[str]) -> dict[str, str]:
    """Read options written as `name=value`, several of them separated by commas or given apart."""
    overrides: dict[str, str] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, _, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if name not in WORLD_OPTIONS:
            hint = did_you_mean(name, WORLD_OPTIONS)
            raise ConfigError("--world", part, f"name=value; {hint}known are {', '.join(WORLD_OPTIONS)}")
        overrides[name] = value.strip()
        _read(name, overrides[name])  # so that it is refused before anything runs
    return overrides


def _read(name: str, text: str) -> object:
    """Return what somebody wrote for an option."""
    option = WORLD_OPTIONS[name]
    try:
        return option.read(text)
    except ValueError:
        hint = did_you_mean(text, option.choices)
        raise _refusal(name, text, f"{option.expected}; {hint}".rstrip("; ")) from None


def _refusal(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError("--world", f"{name}={value}", expected)


def as_arguments(overrides: Overrides) -> str:
    """Return the command line arguments that mean these overrides."""
    return "".join(f" --world {name}={value}" for name, value in overrides.items())


def _made_possible(world: World, overrides: Overrides) -> World:
    """Check what was asked for, and adapt what was drawn to it."""
    needed = blocks_needed(world.groups, world.arrivals, world.chunk_tokens)
    needed = max(needed, blocks_to_resume_first(world.told_groups))
    if world.device_blocks < needed:
        if "device_blocks" in overrides:
            expected = f"at least {needed}, because the largest request of seed {world.seed} needs as many"
            raise _refusal("device_blocks", world.device_blocks, expected)
        world = replace(world, device_blocks=needed)
    for name, limit in (("slots_ready", "host_slots"), ("pin_budget", "device_blocks")):
        value, most = getattr(world, name), getattr(world, limit)
        if value > most:
            if name in overrides:
                raise _refusal(name, value, f"at most {most}, the {limit.replace('_', ' ')}")
            world = replace(world, **{name: most})
    if world.node is not None:  # these are simulated for one engine
        tier = world.tier if "tier" in overrides else world.tier or world.node.tier
        node = replace(world.node, tier=tier)  # they are the node's, not the engines'
        world = replace(world, node=node, tier=None, replicas=1, resets=world.resets[:RESETS_MAX], step_s=0)
        world = replace(world, faults=world.faults.without("not_kept"))
    if world.ranks % world.replicas:
        if "replicas" in overrides:
            raise _refusal("replicas", world.replicas, f"a divisor of the ranks, {world.ranks}")
        world = replace(world, replicas=1)
    if not world.step_s:
        world = replace(world, faults=world.faults.without("silent_rank"))  # they would be waited for without end
    return world


# ---------------------------------------------------------------------- kinds of options


def _number(what: str, low: int, high: int | None = None) -> WorldOption:
    expected = f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"

    def read(text: str) -> int:
        value = _whole(text)
        if value < low or (high is not None and value > high):
            raise ValueError
        return value

    return WorldOption(what, expected, read)


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError
    return int(text)


def _one_of(what: str, expected: str, values: Mapping[str, object], fields: Fields | None = None) -> WorldOption:
    def read(text: str) -> object:
        if text not in values:
            raise ValueError
        return values[text]

    return WorldOption(what, expected, read, fields, tuple(values))


def _choice(what: str, choices: Collection[str], fields: Fields | None = None) -> WorldOption:
    return _one_of(what, "one of " + ", ".join(choices), {choice: choice for choice in choices}, fields)


def _habit(name: str) -> WorldOption:
    def fields(world: World, value: bool) -> dict[str, Any]:
        return {"habits": replace(world.habits, **{name: value})}

    what = "a habit of the engine, explained in sim/world.py"
    return _one_of(what, "yes or no", {"yes": True, "no": False}, fields)


def _layout(world: World, name: str) -> dict[str, Any]:
    smallest = min(group.block_tokens for group in world.groups)
    return {"layout": name, "groups": draw_layout(name, Draw(world.seed, LAYOUT_STREAM), smallest)}


def _requests(world: World, names: list[str]) -> dict[str, Any]:
    known = {arrival.name: arrival for arrival in world.arrivals}
    if not known.keys() >= set(names):
        first, last = world.arrivals[0].name, world.arrivals[-1].name
        raise ValueError(f"names joined by +; seed {world.seed} has {first} to {last}")
    return {"arrivals": tuple(known[name] for name in known if name in names)}


def _no_aborts(world: World, _: None) -> dict[str, Any]:
    return {"arrivals": tuple(replace(arrival, abort_after_steps=None) for arrival in world.arrivals)}


def _read_faults(text: str) -> list[str]:
    """Return the kinds that may not happen."""
    kept = [] if text == NONE else text.split("+")
    if not set(kept) <= set(FAULT_KINDS):
        raise ValueError
    return [kind for kind in FAULT_KINDS if kind not in kept]


def _without(world: World, kinds: list[str]) -> dict[str, Any]:
    return {"faults": world.faults.without(*kinds)}


WITH_NODE: Overrides = {"node": "yes"}


def _node(world: World, kind: str) -> dict[str, Any]:
    node = NodeWorld.draw(world.seed)
    kinds = {
        "yes": node,
        "calm": node.without_faults(),
        "dies": node.whose_node_dies(),
        "breaks": node.whose_links_break(),
    }
    slow = kind in ("dies", "breaks")  # so that copies outlive a life
    faults = replace(world.faults, slow_copy=SLOW_OFTEN) if slow else world.faults
    return {"node": kinds[kind], "faults": faults}


WORLD_OPTIONS: dict[str, WorldOption] = {
    "layout": _choice("kinds of attention", LAYOUTS, _layout),
    "requests": WorldOption(
        "which requests come", "names joined by +, such as r0+r3", lambda text: text.split("+"), _requests
    ),
    "aborts": _one_of("no request is aborted", NONE, {NONE: None}, _no_aborts),
    "tier": _one_of("nothing lies below host memory", NONE, {NONE: None}),
    "node": _choice(
        "several engines share host memory: all goes wrong that can, or nothing, or the node dies, or links break",
        ("yes", "calm", "dies", "breaks"),
        _node,
    ),
    "resets": _one_of("the weights never change", NONE, {NONE: ()}),
    "stops_at": _one_of("no rank loses its device", NONE, {NONE: None}),
    "faults": WorldOption(
        "kinds of faults that may happen",
        f"{NONE}, or some joined by +: {', '.join(FAULT_KINDS)}",
        _read_faults,
        _without,
    ),
    "mode": _choice("when blocks are stored", ("eager", "lazy")),
    "policy": _choice("which block leaves the host first", POLICIES),
    "admission": _choice("which blocks are stored", get_args(Admission)),
    "ranks": _number("workers", 1, 4),
    "replicas": _number("workers that hold the same bytes", 1, 4),
    "depth": _number("1: synchronous, 2: asynchronous scheduling", 1, 2),
    "step_tokens": _number("most tokens of one step", 1),
    "chunk_tokens": _number("most tokens of one request in one step", 1),
    "max_running": _number("most requests that hold blocks", 1),
    "device_blocks": _number("blocks of the device pool", 1),
    "host_slots": _number("slots of the host pool", 1),
    "slots_ready": _number("host slots that can be used from the start", 0),
    "pin_budget": _number("most device blocks that stores may pin", 1),
    "step_s": _number("seconds that go by in each step; 0: kvtide is not told", 0, 60),
    "min_load_tokens": WorldOption(
        "fewer tokens are not loaded",
        "a whole number of at least 0, or auto",
        lambda text: None if text == "auto" else _whole(text),
    ),
} | {field.name: _habit(field.name) for field in fields(Habits) if field.type == "bool"}
"""By name: everything that can be fixed."""
