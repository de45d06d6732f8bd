"""What the simulated engine asks of kvtide before it admits a request, and how much of the offer it takes."""

from __future__ import annotations

from kvtide.sim.attention import State, common_multiple
from kvtide.sim.facade import WatchedManager
from kvtide.sim.request import SimRequest
from kvtide.sim.run import Run

IMPATIENT = 64
"""How often in 256 steps an impatient engine does not wait any longer."""


class Offers:
    """Matches, reserves and decides, as the habits of the engine are."""

    def __init__(self, run: Run, manager: WatchedManager) -> None:
        world = run.world
        self._world = world
        self._habits = world.habits
        self._manager = manager
        self._draw = run.draw
        self._tier_draw = run.tier_draw
        self._boundary = common_multiple(world.groups)
        self._any_state = any(isinstance(group, State) for group in world.groups)

    def take(self, request: SimRequest, device_tokens: int) -> int | None:
        """Ask what the host has, and decide how many tokens to take of it; None: think about it until the next step."""
        match = request.match
        if match is None and self._draw.chance(self._habits.asks_nothing_chance):
            return 0
        if match is None or match.device_tokens != device_tokens:
            match = self._manager.match(request.id, device_tokens, request.known)
            self._manager.reserve(match)
            request.match = None
            if match.waits and not self._is_impatient():
                return None
            if self._habits.patient and match.tokens:
                request.match = match
                return None
        request.match = None
        return self._accept(match.tokens)

    def _is_impatient(self) -> bool:
        if self._world.tier is None:
            return False
        return self._tier_draw.chance(IMPATIENT if self._habits.impatient else self._world.tier.impatient)

    def _accept(self, offered: int) -> int:
        """Take all of an offer, or some of it, as some engines do."""
        if not offered or not self._draw.chance(self._habits.accept_chance):
            return offered
        accepted = self._draw.between(0, offered)
        if self._habits.accepts_inside_blocks and not self._any_state:
            return accepted
        return accepted // self._boundary * self._boundary  # a state cannot be resumed from inside a block
