"""One world from its first step to its last, or to the first thing that must not happen."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvtide.core.reasons import NotStored
from kvtide.sim.engine import SimEngine
from kvtide.sim.node.machine import NodeMachine
from kvtide.sim.run import Run
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

_TIERS_LOG = logging.getLogger("kvtide.tiers")


@dataclass(frozen=True, slots=True)
class Found:
    """A violation, and where it was found."""

    seed: int
    step: int
    invariant: str
    what: str
    exception: str | None = None
    """Its name, if the engine died of one."""
    with_node: bool = False
    """The world had a node."""


@dataclass(slots=True)
class Result:
    """What became of one world."""

    seed: int
    steps: int
    found: Found | None
    faults: dict[str, int]
    reasons: dict[str, int]
    kinds: tuple[str, ...]
    """What kind of world it was, in a few words."""
    log: list[str] = field(default_factory=list)


def simulate(world: World, *, log: bool = False) -> Result:
    """Run a world to its end."""
    run = Run.of(world, log=log)
    with_node = world.node is not None
    engine: SimEngine | NodeMachine = NodeMachine(run) if with_node else SimEngine(run)
    found = None
    try:
        with _silence():
            engine.run()
    except Violation as violation:
        found = Found(world.seed, engine.step_number, violation.invariant, violation.what, None, with_node)
    except Exception as error:
        # Whatever the core raises would end a serving engine.
        what = f"the engine dies: {_last_line(error)}"
        found = Found(world.seed, engine.step_number, "I8", what, type(error).__name__, with_node)
    reasons, counts = Counter[str](), Counter[str]()
    for metrics in engine.counted:
        reasons.update({f"not_stored.{why.value}": count for why, count in metrics.not_stored.items() if count})
        reasons.update({f"not_loaded.{why.value}": count for why, count in metrics.not_loaded.items() if count})
        reasons.update({f"not_sunk.{why.value}": count for why, count in metrics.not_sunk.items() if count})
        if metrics.not_stored[NotStored.HOST_FULL]:
            engine.fault_counts["host_full"] += metrics.not_stored[NotStored.HOST_FULL]
        counts["loads"] += metrics.loaded_blocks
        counts["fetches"] += metrics.fetched_blocks
        counts["preemptions"] += metrics.preemptions
    kinds = [world.mode, world.layout, f"ranks {world.ranks}", f"depth {world.depth}"]
    kinds += [f"replicas {world.replicas}"] if world.replicas > 1 else []
    kinds += [f"with {what}" for what, count in counts.items() if count]
    if with_node:
        kinds.append("with a node")
    lines = engine.log.lines if engine.log else []
    return Result(world.seed, engine.steps, found, dict(engine.fault_counts), dict(reasons), tuple(kinds), lines)


@contextmanager
def _silence() -> Iterator[None]:
    """Log nothing of what tiers complain about: it is meant to happen, and has a log of its own."""
    level = _TIERS_LOG.level
    _TIERS_LOG.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        _TIERS_LOG.setLevel(level)


def _last_line(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.name} in {where.filename.rsplit('/', 1)[-1]})"
