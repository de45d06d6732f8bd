"""World options: what people (and the shrinker) may fix in a world that is otherwise drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from kvtide.core.config import Admission
from kvtide.core.eviction import POLICIES
from kvtide.errors import ConfigError
from kvtide.options import did_you_mean
from kvtide.sim.draw import Draw
from kvtide.sim.faults import FAULT_KINDS
from kvtide.sim.layouts import LAYOUTS, draw_layout
from kvtide.sim.world import Habits, World, blocks_needed, blocks_to_resume_first

LAYOUT_STREAM = 2
NONE = "none"

Overrides = Mapping[str, str]
"""Option to value, as people write them."""


@dataclass(frozen=True, slots=True)
class WorldOption:
    """One thing that can be fixed."""

    what: str
    expected: str
    apply: Callable[[World, str], World]
    """Returns the world with the value; raises ValueError if the value makes no sense."""


def apply_overrides(world: World, overrides: Overrides) -> World:
    """Return the world with everything fixed that is asked for; raises ConfigError if that is impossible."""
    for name, option in WORLD_OPTIONS.items():  # in a fixed order, because some depend on others
        if name in overrides:
            try:
                world = option.apply(world, overrides[name])
            except ValueError as error:
                raise ConfigError(name, overrides[name], str(error) or option.expected) from None
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
    return overrides


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
            raise ConfigError("device_blocks", world.device_blocks, expected)
        world = replace(world, device_blocks=needed)
    if world.slots_ready > world.host_slots:
        if "slots_ready" in overrides:
            raise ConfigError("slots_ready", world.slots_ready, f"at most {world.host_slots}, the host slots")
        world = replace(world, slots_ready=world.host_slots)
    if world.pin_budget > world.device_blocks:
        if "pin_budget" in overrides:
            raise ConfigError("pin_budget", world.pin_budget, f"at most {world.device_blocks}, the device blocks")
        world = replace(world, pin_budget=world.device_blocks)
    if not world.step_s:
        world = replace(world, faults=world.faults.without("silent_rank"))  # they would be waited for without end
    return world


# ---------------------------------------------------------------------- kinds of options


def _number(field: str, what: str, low: int, high: int | None = None) -> WorldOption:
    expected = f"a whole number from {low} to {high}" if high is not None else f"a whole number of at least {low}"

    def apply(world: World, text: str) -> World:
        if not text.isascii() or not text.isdigit():
            raise ValueError
        value = int(text)
        if value < low or (high is not None and value > high):
            raise ValueError
        return _replaced(world, field, value)

    return WorldOption(what, expected, apply)


def _choice(field: str, what: str, choices: tuple[str, ...]) -> WorldOption:
    def apply(world: World, text: str) -> World:
        if text not in choices:
            raise ValueError
        return _replaced(world, field, text)

    return WorldOption(what, "one of " + ", ".join(choices), apply)


def _habit(field: str) -> WorldOption:
    def apply(world: World, text: str) -> World:
        if text not in ("yes", "no"):
            raise ValueError
        habits: dict[str, Any] = {field: text == "yes"}
        return replace(world, habits=replace(world.habits, **habits))

    return WorldOption("a habit of the engine, explained in sim/world.py", "yes or no", apply)


def _replaced(world: World, field: str, value: object) -> World:
    values: dict[str, Any] = {field: value}
    return replace(world, **values)


def _apply_layout(world: World, text: str) -> World:
    if text not in LAYOUTS:
        raise ValueError
    smallest = min(group.block_tokens for group in world.groups)
    groups = draw_layout(text, Draw(world.seed, LAYOUT_STREAM), smallest)
    return replace(world, layout=text, groups=groups)


def _apply_requests(world: World, text: str) -> World:
    names = text.split("+")
    known = {arrival.name: arrival for arrival in world.arrivals}
    if not all(name in known for name in names):
        first, last = world.arrivals[0].name, world.arrivals[-1].name
        raise ValueError(f"names joined by +; seed {world.seed} has {first} to {last}")
    return replace(world, arrivals=tuple(known[name] for name in known if name in names))


def _apply_faults(world: World, text: str) -> World:
    kept = () if text == NONE else tuple(text.split("+"))
    if any(kind not in FAULT_KINDS for kind in kept):
        raise ValueError
    return replace(world, faults=world.faults.without(*(kind for kind in FAULT_KINDS if kind not in kept)))


def _apply_resets(world: World, text: str) -> World:
    if text != NONE:
        raise ValueError
    return replace(world, resets=())


def _apply_stops_at(world: World, text: str) -> World:
    if text != NONE:
        raise ValueError
    return replace(world, stops_at=None)


def _apply_aborts(world: World, text: str) -> World:
    if text != NONE:
        raise ValueError
    return replace(world, arrivals=tuple(replace(arrival, abort_after_steps=None) for arrival in world.arrivals))


def _apply_min_load_tokens(world: World, text: str) -> World:
    if text == "auto":
        return replace(world, min_load_tokens=None)
    if not text.isascii() or not text.isdigit():
        raise ValueError
    return replace(world, min_load_tokens=int(text))


def _apply_tier(world: World, text: str) -> World:
    if text != NONE:
        raise ValueError
    return replace(world, tier=None)


WORLD_OPTIONS: dict[str, WorldOption] = {
    "layout": WorldOption("kinds of attention", "one of " + ", ".join(LAYOUTS), _apply_layout),
    "requests": WorldOption("which requests come", "names joined by +, such as r0+r3", _apply_requests),
    "aborts": WorldOption("no request is aborted", NONE, _apply_aborts),
    "tier": WorldOption("nothing lies below host memory", NONE, _apply_tier),
    "resets": WorldOption("the weights never change", NONE, _apply_resets),
    "stops_at": WorldOption("no rank loses its device", NONE, _apply_stops_at),
    "faults": WorldOption(
        "kinds of faults that may happen", f"{NONE}, or some joined by +: {', '.join(FAULT_KINDS)}", _apply_faults
    ),
    "mode": _choice("mode", "when blocks are stored", ("eager", "lazy")),
    "policy": _choice("policy", "which block leaves the host first", tuple(POLICIES)),
    "admission": _choice("admission", "which blocks are stored", get_args(Admission)),
    "ranks": _number("ranks", "workers", 1, 4),
    "depth": _number("depth", "1: synchronous, 2: asynchronous scheduling", 1, 2),
    "step_tokens": _number("step_tokens", "most tokens of one step", 1),
    "chunk_tokens": _number("chunk_tokens", "most tokens of one request in one step", 1),
    "max_running": _number("max_running", "most requests that hold blocks", 1),
    "device_blocks": _number("device_blocks", "blocks of the device pool", 1),
    "host_slots": _number("host_slots", "slots of the host pool", 1),
    "slots_ready": _number("slots_ready", "host slots that can be used from the start", 0),
    "pin_budget": _number("pin_budget", "most device blocks that stores may pin", 1),
    "step_s": _number("step_s", "seconds that go by in each step; 0: kvtide is not told", 0, 60),
    "min_load_tokens": WorldOption(
        "fewer tokens are not loaded", "a whole number of at least 0, or auto", _apply_min_load_tokens
    ),
} | {field.name: _habit(field.name) for field in fields(Habits) if field.type == "bool"}
"""By name: everything that can be fixed."""
