"""A machine: a node, and engines that take turns in no order. Each may die at any time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kvtide.core.manager import OffloadManager
from kvtide.core.metrics import Metrics
from kvtide.sim.checkers.content import ContentChecker
from kvtide.sim.checkers.ownership import OwnershipChecker
from kvtide.sim.checkers.pin_budget import PinBudgetChecker
from kvtide.sim.checkers.progress import ProgressChecker
from kvtide.sim.checkers.references import ReferencesChecker
from kvtide.sim.checkers.reports import ReportsChecker
from kvtide.sim.checkers.stopped import StoppedChecker
from kvtide.sim.checkers.watch import Watch
from kvtide.sim.draw import Draw
from kvtide.sim.log import LogOf
from kvtide.sim.node.chances import NODE_RUN_STREAM
from kvtide.sim.node.connection import Connection, draw_delay
from kvtide.sim.node.engine import NodeEngine
from kvtide.sim.node.engine_side import AtNodeChecker
from kvtide.sim.node.link import SimLink
from kvtide.sim.node.missed import MissedChecker
from kvtide.sim.node.node import SimNode
from kvtide.sim.node.ready import ReadyChecker
from kvtide.sim.node.watch import NodeWatch
from kvtide.sim.run import Run
from kvtide.sim.traffic import Arrival
from kvtide.sim.violation import Violation
from kvtide.sim.world import Habits

ENGINE_CHECKERS = (
    OwnershipChecker,
    ContentChecker,
    ReferencesChecker,
    ProgressChecker,
    PinBudgetChecker,
    ReportsChecker,
    StoppedChecker,
    ReadyChecker,
    MissedChecker,
)
"""What holds for each engine by itself."""
ALSO_ELSEWHERE, ELSEWHERE_STEPS_MAX = 160, 40
"""How often in 256 times a request also comes to another engine, and how much later at most."""
WHILE_COPYING = 12
"""How many times as often an engine, or the node, dies, or their connection breaks, while that engine copies."""
DEATHS_MAX = 6
"""Of engines, and of nodes: so that worlds end."""
EXIT_TICKS_MAX, KNOWN_TICKS_MAX = 80, 30
"""How long a killed process may go on copying, and how long after its end that is known."""
AWAY_ROUNDS_MAX = 200
"""For so many of these rounds an engine may try in vain to connect, because messages are slow."""
HANGS_MAX = 2
"""Of one world: so that it ends."""
HANG_TICKS_MAX = 30_000
"""Engines leave a node that has not answered for a third of this."""
HUNG_STEP_TICKS_MAX = 500
"""Steps take longer while the node hangs, or it would take thousands of them until somebody leaves it."""
ASKED_AGAIN_MAX = 3
"""Requests that come again to an engine that was killed."""
CALM_ROUNDS, CALM_TICKS = 30, 16
"""After so many rounds in which nobody had anything to do, and so many ticks between them, all that was under way has
come.
"""


class NodeMachine:
    """Several engines in virtual time."""

    def __init__(self, run: Run) -> None:
        assert run.world.node is not None
        self._node_world = run.world.node
        self._run = replace(run, draw=Draw(run.world.seed, NODE_RUN_STREAM))
        self._draw = self._run.draw
        self._clock = run.clock
        self.log = run.log
        self.fault_counts = run.fault_counts
        self.watch = NodeWatch()
        self.node = SimNode(self._run, self.watch)
        self.managers: list[OffloadManager] = []
        """Of all engines that there ever were."""
        self.steps = 0
        self._deaths = dict.fromkeys(("engine", "node"), 0)
        self._hangs = 0
        self.engines = [
            self._begin(f"e{index}", index % self._node_world.models, arrivals)
            for index, arrivals in enumerate(self._deal())
        ]

    @property
    def counted(self) -> list[Metrics]:
        """What was counted, by engines and at the node."""
        return [*(manager.metrics for manager in self.managers), *self.node.counted]

    @property
    def step_number(self) -> int:
        """How far it has come."""
        return self.steps

    def _deal(self) -> list[tuple[Arrival, ...]]:
        """Let each request come to some engine, and many to another one too: conversations hop."""
        hands: list[list[Arrival]] = [[] for _ in range(self._node_world.engines)]
        for arrival in self._run.world.arrivals:
            first = self._draw.below(len(hands))
            hands[first].append(arrival)
            if self._draw.chance(ALSO_ELSEWHERE):
                hands[first - 1].append(
                    replace(arrival, at_step=arrival.at_step + self._draw.below(ELSEWHERE_STEPS_MAX))
                )
        return [tuple(sorted(hand, key=lambda arrival: arrival.at_step)) for hand in hands]

    def _begin(self, name: str, model: int, arrivals: tuple[Arrival, ...]) -> NodeEngine:
        """Start the processes of an engine, which has habits of its own."""
        world = self._run.world
        habits = replace(Habits.draw(self._draw, self._draw), rounds_windows_up=world.habits.rounds_windows_up)
        own = replace(
            world,
            arrivals=arrivals,
            habits=habits,
            mode=self._draw.pick(("eager", "eager", "lazy")),
            slots_ready=self._draw.pick((world.host_slots, world.host_slots, world.slots_ready)),
        )
        log = LogOf(self.log, name) if self.log else None
        run = replace(self._run, world=own, log=log)
        link = SimLink(self.node, run)
        at_node = partial(AtNodeChecker, link=link, node=self.watch)
        engine = NodeEngine(replace(run, watch=Watch(own, (*ENGINE_CHECKERS, at_node))), link, name, model)
        self.managers.append(engine.manager.manager)
        return engine

    # ------------------------------------------------------------------ life

    def run(self) -> None:
        """Live through the whole world, and then for a while without faults."""
        while any(engine.killed or not engine.is_over for engine in self.engines):
            self._go_wrong()
            self._turn([each for each in self.engines if each.serves and not each.killed and not each.is_over])
        for engine in self.engines:
            engine.keep_weights()
        calm = away = 0
        while calm < CALM_ROUNDS:
            self._clock.run(CALM_TICKS + self.node.hang_ticks_left)
            busy = [engine for engine in self.engines if not engine.is_over]
            for engine in busy or self.engines:  # who rests is not woken up because of others
                self._turn([engine])
            some_away = not all(engine.link.is_back for engine in self.engines)
            away += some_away
            calm = 0 if busy or (some_away and away < AWAY_ROUNDS_MAX) else calm + 1
        self._check_at_rest()
        for engine in self.engines:
            engine.close()

    def _turn(self, engines: list[NodeEngine]) -> None:
        self.steps += 1
        if self.node.hang_ticks_left:
            self._clock.run(self._draw.between(1, HUNG_STEP_TICKS_MAX))
        if engines:
            self._draw.pick(engines).turn()
        else:
            self._clock.run(1)

    def _check_at_rest(self) -> None:
        for engine in self.engines:
            if not engine.link.is_back:
                raise Violation("I13", f"{engine.name} has not come back to its node")
        self.watch.at_end()
        self.node.check_at_rest()

    # ------------------------------------------------------------------ what goes wrong

    def _go_wrong(self) -> None:
        """Let connections break, and somebody die, now and then."""
        chances = self._node_world
        index = self._draw.below(len(self.engines))
        engine = self.engines[index]
        connection = engine.link.connection
        more = WHILE_COPYING if any(rank.copies.running for rank in engine.ranks) else 1
        if connection is not None and self._draw.chance(more * chances.link_breaks):
            self._break(connection)
        if not engine.killed and self._dies("engine", more * chances.engine_dies):
            self._kill(index)
        if self.node.alive and self._dies("node", more * chances.node_dies):
            self.node.die()
            self._clock.after(self._draw.skewed(1, chances.away_ticks_max), self.node.begin, None)
        if self.node.alive and not self.node.hang_ticks_left and self._hangs < HANGS_MAX:
            self._hang(more * chances.node_hangs)
        is_there = self.node.alive and not self.node.hang_ticks_left and self.node.namespaces
        if chances.node_clears and is_there and self._draw.chance(more * chances.node_clears):
            self.fault_counts["node_clears"] += 1
            self.node.clear(self._draw.pick(tuple(self.node.namespaces)))

    def _hang(self, chance: int) -> None:
        if self._draw.chance(chance):
            self._hangs += 1
            self.fault_counts["node_hangs"] += 1
            self.node.hang(self._draw.between(1, HANG_TICKS_MAX))

    def _dies(self, who: str, chance: int) -> bool:
        if self._deaths[who] == DEATHS_MAX or not self._draw.chance(chance):
            return False
        self._deaths[who] += 1
        self.fault_counts[f"{who}_dies"] += 1
        return True

    def _break(self, connection: Connection) -> None:
        """Lose what is under way. Both ends notice, each at its time."""
        if self.log:
            self.log.add(f"the connection of {connection} breaks")
        self.fault_counts["link_breaks"] += 1
        connection.broken = True
        self._clock.after(draw_delay(self._run), self.node.closed, connection)
        self._clock.after(draw_delay(self._run), connection.engine.link.lost, connection)

    def _kill(self, index: int) -> None:
        """Kill an engine, and start it again, maybe before the last of its processes is gone."""
        engine, draw = self.engines[index], self._draw
        if self.log:
            self.log.add(f"{engine.name} is killed")
        self.fault_counts["lands_late"] += len(list(engine.stores_under_way()))
        exits_ticks = [draw.between(1, EXIT_TICKS_MAX) for _ in engine.ranks]
        engine.kill(exits_ticks)
        if engine.link.connection is not None:
            self._clock.after(draw.between(1, EXIT_TICKS_MAX), self.node.closed, engine.link.connection)
        self._clock.after(max(exits_ticks) + draw.between(1, KNOWN_TICKS_MAX), self.node.exited, engine)
        self._clock.after(draw.between(1, self._node_world.away_ticks_max), self._start_again, index)

    def _start_again(self, index: int) -> None:
        engine = self.engines[index]
        if self.log:
            self.log.add(f"{engine.name} is started again")
        left = engine.arrivals_left
        come = engine.world.arrivals[: len(engine.world.arrivals) - len(left)]
        again = tuple(replace(arrival, at_step=0) for arrival in come[-ASKED_AGAIN_MAX:])
        self.engines[index] = self._begin(engine.name, engine.namespace[0], (*again, *left))
