"""One connection of an engine to a node: messages take their time, in order, and are lost when it breaks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvtide.sim.run import Run

if TYPE_CHECKING:
    from kvtide.sim.node.arena import Arena
    from kvtide.sim.node.engine import NodeEngine

SLOW_TICKS_MAX = 160
"""Longer than any engine waits for an answer."""

Deliver = Callable[["Connection", Any], None]


class Connection:
    """One life of an engine at one life of the node."""

    def __init__(self, life: int, engine: NodeEngine, run: Run) -> None:
        self.life = life
        self.engine = engine
        self.namespace = engine.namespace
        """What the engine asks for."""
        self.weights = engine.weights
        """What the bytes are made from that it stores and expects."""
        self.arena: Arena | None = None
        """The memory that it was given."""
        self.broken = False
        """Nothing comes through any more."""
        self.closed = False
        """The node has noticed."""
        self._run = run
        self._due_there = self._due_here = 0

    def __str__(self) -> str:
        return f"{self.engine.name} in life {self.life}"

    def carry_there(self, deliver: Deliver, message: Any) -> None:
        """Bring a message to the node."""
        self._due_there = self._carry(self._due_there, deliver, message)

    def carry_here(self, deliver: Deliver, message: Any) -> None:
        """Bring a message to the engine."""
        self._due_here = self._carry(self._due_here, deliver, message)

    def _carry(self, due: int, deliver: Deliver, message: Any) -> int:
        clock = self._run.clock
        due = max(due, clock.now + draw_delay(self._run))
        clock.after(due - clock.now, self._arrive, (deliver, copy.deepcopy(message)))
        return due

    def _arrive(self, letter: tuple[Deliver, Any]) -> None:
        deliver, message = letter
        if not self.broken:
            deliver(self, message)


def draw_delay(run: Run) -> int:
    """Return how many ticks it takes until something is known at the other end."""
    node = run.world.node
    assert node is not None
    if run.draw.chance(node.link_slow):
        run.fault_counts["link_slow"] += 1
        return run.draw.between(1, SLOW_TICKS_MAX)
    return run.draw.between(1, node.link_ticks_max)
