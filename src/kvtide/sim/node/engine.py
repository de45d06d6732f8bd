"""An engine whose host blocks are at a node. It can be killed."""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from dataclasses import replace
from functools import partial

from kvtide.core.messages import Plan
from kvtide.sim.clock import TICK_S
from kvtide.sim.copies import Job, SimCopyEngine
from kvtide.sim.engine import SimEngine
from kvtide.sim.node.arena import WEIGHTS_OF_MODEL, Arena, Name
from kvtide.sim.node.link import SimLink
from kvtide.sim.run import Run
from kvtide.sim.traffic import Arrival
from kvtide.sim.work import StepWork

LONG_STEP_S = 0.4
"""More does not count as one step."""
STARTING_TICKS = (0, 40, 40, 40)
"""So long an engine takes to start, if it does not find its node before."""


class NodeEngine(SimEngine):
    """One life of the processes of an engine."""

    ticks_per_step = 2
    """Others step meanwhile."""

    def __init__(self, run: Run, link: SimLink, name: str, model: int) -> None:
        super().__init__(run, link)
        self.name = name
        self.namespace: Name = (model, 0)
        self.link = link
        self.killed = False
        self._serves_at_tick = self.clock.now + run.draw.pick(STARTING_TICKS)
        self.scheduler.epoch = self.watch.observed.epoch = WEIGHTS_OF_MODEL * model
        self.told_tick = self.clock.now
        self.patience_s = 0.0
        """Time as it counts for who waits for ranks, that cannot answer while their engine rests."""
        self._arenas: dict[int, Arena] = {}
        self.told_s = 0.0
        """Time that it has told of. Of a step that takes longer than a second, only that: it was not there to hear."""
        link.engine = self
        for rank in self.ranks:
            rank.slots_grow = True  # none can be used before it has mapped something
            rank.memory_of = partial(self._memory_of, rank.index)
        link.connect()

    def step(self) -> None:
        """Do one step. The time since the last one is told."""
        passed_s = TICK_S * (self.clock.now - self.told_tick)
        self.patience_s += min(passed_s, LONG_STEP_S)
        self.told_tick = self.clock.now
        self.told_s += min(passed_s, 1.0)
        self.manager.manager.passed(passed_s)
        super().step()

    @property
    def serves(self) -> bool:
        """Whether it has started: most engines have a node by then."""
        return self.clock.now >= self._serves_at_tick or self.link.life is not None

    @property
    def weights(self) -> int:
        """Which weights it computes with."""
        return self.scheduler.epoch

    def leave(self, number: int) -> None:
        """Ask for a namespace that nobody else has from now on: the weights change."""
        self.namespace = self.namespace[0], number

    @property
    def arrivals_left(self) -> tuple[Arrival, ...]:
        """What has not come yet, as seen from now."""
        now = self.step_number
        return tuple(replace(arrival, at_step=max(0, arrival.at_step - now)) for arrival in self._arrivals)

    def keep_weights(self) -> None:
        """Let the weights not change any more."""
        self._resets.clear()

    def welcome(self, life: int, arena: Arena) -> None:
        """Let ranks find the memory of a life, once they hear of it by a plan."""
        self._arenas[life] = arena

    def _memory_of(self, rank: int, life: int) -> MutableSequence[int]:
        return self._arenas[life].parts[rank]

    def _dispatch(self, plan: Plan, work: StepWork) -> None:
        """Send a plan. It says where the host slots are."""
        for rank in self.ranks:
            rank.worker.use(plan.pool)
        super()._dispatch(plan, work)

    def stores_under_way(self) -> Iterator[Job]:
        """Yield what is being written to memory of the node."""
        for rank in self.ranks:
            yield from (job for job in rank.copies.running.values() if job.is_store)

    def kill(self, exits_ticks: list[int]) -> None:
        """End all processes with `kill -9`. Each is really gone some ticks later; until then its copies go on."""
        self.killed = self.link.dead = True
        for rank, ticks in zip(self.ranks, exits_ticks, strict=True):
            self.clock.after(ticks, SimCopyEngine.exit, rank.copies)

    def close(self) -> None:
        """End in an orderly way."""
        for rank in self.ranks:
            rank.close()
        self.watch.at_end(0)
