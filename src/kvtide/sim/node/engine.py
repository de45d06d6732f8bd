"""An engine whose host blocks are at a node. It can be killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvtide.sim.clock import TICK_S
from kvtide.sim.copies import Job, SimCopyEngine
from kvtide.sim.engine import SimEngine
from kvtide.sim.node.arena import Arena
from kvtide.sim.node.link import SimLink
from kvtide.sim.run import Run
from kvtide.sim.traffic import Arrival

WEIGHTS_OF_NAMESPACE = 8
"""Namespaces are told apart by the weights that their bytes are made from."""


class NodeEngine(SimEngine):
    """One life of the processes of an engine."""

    ticks_per_step = 2
    """Others step meanwhile."""

    def __init__(self, run: Run, link: SimLink, name: str, namespace: int) -> None:
        super().__init__(run, link)
        self.name = name
        self.namespace = namespace
        self.weights = WEIGHTS_OF_NAMESPACE * namespace
        self.link = link
        self.killed = False
        self.scheduler.epoch = self.watch.observed.epoch = self.weights
        self.told_tick = self.clock.now
        link.engine = self
        for rank in self.ranks:
            rank.slots_grow = rank.has_news = True  # what it has mapped is told in its first report
        link.connect()

    def step(self) -> None:
        """Do one step. The time since the last one is told."""
        passed_s = TICK_S * (self.clock.now - self.told_tick)
        self.told_tick = self.clock.now
        self.manager.manager.passed(passed_s)
        super().step()

    @property
    def arrivals_left(self) -> tuple[Arrival, ...]:
        """What has not come yet, as seen from now."""
        now = self.step_number
        return tuple(replace(arrival, at_step=max(0, arrival.at_step - now)) for arrival in self._arrivals)

    def map(self, life: int, arena: Arena) -> None:
        """Let every rank have its part of the memory of a life."""
        for rank in self.ranks:
            rank.memories[life] = arena.parts[rank.index]

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
