"""The engine's end of its connection to the node. It connects by itself, and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvtide.core.groups import Key
from kvtide.core.index.calls import Call, Ready, Reply, Reserve, Reserved, Unkept
from kvtide.core.messages import Pool
from kvtide.sim.clock import TICK_S
from kvtide.sim.node.connection import Connection, draw_delay
from kvtide.sim.run import Run
from kvtide.sim.violation import Violation

if TYPE_CHECKING:
    from kvtide.sim.node.engine import NodeEngine
    from kvtide.sim.node.node import SimNode

RETRY_TICKS = 6
SILENT_S, ROUNDED_S = 10.0, 1e-6
"""So long an engine waits for the answer to a reservation, and how far off it may be: it adds up seconds."""
HELLO_TICKS = 800
"""So long it waits for the answer of a node that is there and hangs."""


class SimLink:
    """See `kvtide.core.index.link.Link`."""

    def __init__(self, node: SimNode, run: Run) -> None:
        self.engine: NodeEngine
        self.connection: Connection | None = None
        """What is being opened, or is open."""
        self.greeted: int | None = None
        """The last life that the engine has taken note of."""
        self.greeted_s = 0.0
        """How much of its patience the engine had told of by then."""
        self.has_memory = False
        """The engine has told, in that life, that its ranks can use some slots."""
        self.unkept: dict[tuple[int, Key], None] = {}
        """What nobody has written, as the engine was told, and what it has not offered since."""
        self.unanswered: dict[int, float] = {}
        """Reservations of this life: how much time the engine had told of when it asked."""
        self.dead = False
        """The process that has this end was killed."""
        self._node = node
        self._run = run
        self._welcome = False
        self._out: list[Call] = []
        self._inbox: list[Reply] = []
        self._in_use: dict[int, None] = {}
        """Lives that the engine has taken note of, and not said to be drained."""
        self._said_in_use: tuple[int, ...] = ()
        """Those of which the last hello said so."""

    # ------------------------------------------------------------------ the interface of links

    @property
    def life(self) -> int | None:
        """See `Link`."""
        return self.connection.life if self.connection is not None and self._welcome else None

    @property
    def pool(self) -> Pool | None:
        """See `Link`."""
        return None if self.life is None else Pool(self.life, f"epoch {self._node.epoch}", self.life)

    @property
    def slots(self) -> int:
        """See `Link`."""
        return self._run.world.host_slots if self._welcome else 0

    def send(self, call: Call) -> None:
        """See `Link`."""
        if isinstance(call, Ready):
            self.has_memory = call.slots > 0
            if self.greeted != self.life:
                self.greeted_s = self.engine.patience_s
            self.greeted = self.life
            if self.greeted is not None:
                self._in_use[self.greeted] = None
        elif isinstance(call, Reserve):
            self.unanswered[call.id] = self.engine.told_s
            for offer in call.offers:
                self.engine.watch.observed.asked_blocks += len(offer.keys) - len(offer.gone)
                for key in offer.keys:
                    self.unkept.pop((offer.group, key), None)
        self._out.append(call)

    def flush(self) -> None:
        """See `Link`."""
        out, self._out = self._out, []
        if self.connection is not None and self._welcome:
            for call in out:
                self.connection.carry_there(self._node.hear, call)

    def receive(self) -> Sequence[Reply]:
        """See `Link`."""
        inbox, self._inbox = self._inbox, []
        self.engine.watch.observed.answers += len(inbox)
        for reply in inbox:
            if isinstance(reply, Unkept):
                self.unkept.update(((reply.chain.group, key), None) for key in reply.chain.keys)
            elif isinstance(reply, Reserved):
                del self.unanswered[reply.id]
        return inbox

    def wait(self, seconds: float) -> float:
        """See `Link`."""
        clock, life = self._run.clock, self.life
        end = clock.now + round(seconds / TICK_S)
        while clock.now < end and not self._inbox and self.life == life:
            clock.run(1)
        return (end - clock.now) * TICK_S

    def leave(self) -> None:
        """See `Link`."""
        self.engine.leave(self._node.next_life())
        if self.connection is not None:
            self.lost(self.connection)

    def hang_up(self) -> None:
        """See `Link`."""
        if not self.is_silent(SILENT_S - ROUNDED_S):
            raise Violation("I13", f"{self.engine.name} leaves its node, which has had no time to answer")
        if self.connection is not None:
            self.lost(self.connection)

    def drained(self, life: int) -> None:
        """See `Link`. If that is lost, or there is nobody to hear it, the next hello says so."""
        self._in_use.pop(life, None)
        if self.connection is not None and self._welcome:
            self.connection.carry_there(self._node.hear_drained, life)

    def is_silent(self, seconds: float) -> bool:
        """Whether the node has not answered some reservation for so long."""
        return any(self.engine.told_s - since_s >= seconds for since_s in self.unanswered.values())

    @property
    def is_back(self) -> bool:
        """Whether it is connected, and the engine has taken note of that."""
        return self.life is not None and self.greeted == self.life

    # ------------------------------------------------------------------ lives

    def connect(self, _: object = None) -> None:
        """Try to begin a life, until it works."""
        node = self._run.world.node
        if self.dead or self._welcome or node is None:
            return
        self.connection = Connection(self._node.next_life(), self.engine, self._run)
        self._said_in_use = tuple(self._in_use)
        self.connection.carry_there(self._node.attach, self._said_in_use)
        patience = HELLO_TICKS if self._node.hang_ticks_left else RETRY_TICKS + 2 * node.link_ticks_max
        self._run.clock.after(patience, self._give_up, self.connection)

    def _give_up(self, connection: Connection) -> None:
        """Try again if nothing has come of it."""
        if connection is self.connection and not self._welcome:
            self.lost(connection)

    def welcome(self, connection: Connection, _: None) -> None:
        """The node has answered: its memory can be mapped, and a life begins."""
        if self.dead or connection is not self.connection:
            return
        assert connection.arena is not None
        self._welcome = True
        self.engine.welcome(connection.life, connection.arena)
        for life in self._said_in_use:
            if life not in self._in_use:
                connection.carry_there(self._node.hear_drained, life)  # it was in use when this began

    def hear(self, connection: Connection, reply: Reply) -> None:
        """Something has come."""
        if not self.dead and connection is self.connection and self._welcome:
            self._inbox.append(reply)

    def lost(self, connection: Connection) -> None:
        """A connection is seen to be closed: what came before that and was not read is lost with it."""
        if self.dead or connection is not self.connection:
            return
        connection.broken = True
        self._run.clock.after(draw_delay(self._run), self._node.closed, connection)
        self.connection, self._welcome = None, False
        self._inbox.clear()
        self._out.clear()
        self.unkept.clear()
        self.unanswered.clear()
        self._run.clock.after(RETRY_TICKS, self.connect, None)
