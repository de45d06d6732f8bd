"""A node in virtual time: it lives and dies, and has the real index of each namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from kvtide.core.events import CacheEvent, EventStream, Stored
from kvtide.core.index.calls import Call, Reserved
from kvtide.core.index.local import LocalIndex
from kvtide.core.index.shared import SharedIndex
from kvtide.core.ledger import Ledger
from kvtide.core.metrics import Metrics
from kvtide.sim.configuration import config_of
from kvtide.sim.node.arena import WEIGHTS_OF_MODEL, Arena, Name
from kvtide.sim.node.connection import Connection, draw_delay
from kvtide.sim.node.tiers import Kept, NodeTiers, with_tiers
from kvtide.sim.node.watch import NodeWatch
from kvtide.sim.run import Run
from kvtide.sim.tokens import node_of_key, stamp
from kvtide.sim.violation import Violation

if TYPE_CHECKING:
    from kvtide.sim.node.engine import NodeEngine


class Namespace:
    """The blocks of one model: an index, and memory."""

    def __init__(self, run: Run, name: Name, node: SimNode) -> None:
        world = run.world
        config = config_of(world)
        assert world.node is not None
        tier = world.node.tier if name[1] == 0 else None
        if tier is not None:
            config = with_tiers(config, tier)
        metrics = Metrics()
        node.counted.append(metrics)
        self._events = EventStream(True, metrics)
        self.local = LocalIndex(config, Ledger(world.ranks, metrics), self._events, metrics, None)
        self.index = SharedIndex(
            self.local,
            leased_quarters_max=world.node.leased_quarters_max,
            spare_slots=world.node.spare_slots,
        )
        self.arena = Arena(name, world.host_slots, world.ranks)
        self.tiers: NodeTiers | None = None
        if tier is not None:
            self.tiers = NodeTiers(
                run,
                tier,
                self.index,
                self.arena,
                kept=node.kept,
                books=node.watch.books,
                hang_ticks_left=lambda: node.hang_ticks_left,
                after=partial(node.tiers_moved, self),
            )

    @property
    def is_idle(self) -> bool:
        """Whether its tiers have nothing to do."""
        return self.tiers is None or self.tiers.is_idle

    def check_came_up(self, watch: NodeWatch) -> None:
        """Only what every part has becomes visible without a commit (I12)."""
        weights = WEIGHTS_OF_MODEL * self.arena.namespace[0]
        stored = [event for event in self.take_events() if isinstance(event, Stored)]
        for group, key in ((event.group, key) for event in stored for key in event.keys):
            slot = self.local.host.slot_of(group, key)
            content = stamp(node_of_key(key), weights, group)
            if slot is None or not self.arena.holds(slot, content):
                raise Violation("I12", f"{key.hex()} came up, and slot {slot} does not hold it in every part")
            watch.came_up((self.arena, group, key), slot)

    def take_events(self) -> list[CacheEvent]:
        """Return what became visible and what was evicted."""
        return self._events.take()


def when_it_works(hear: Callable[..., None]) -> Callable[..., None]:
    """Let what a node hears wait for as long as it hangs."""

    @wraps(hear)
    def heard(self: SimNode, who: Connection | NodeEngine, *what: Any) -> None:
        if self.hang_ticks_left:
            self._unheard.setdefault(who, []).append((hear, what))
        else:
            hear(self, who, *what)

    return heard


class SimNode:
    """Hears calls and answers them, for as long as it lives."""

    def __init__(self, run: Run, watch: NodeWatch) -> None:
        self._run = run
        self.watch = watch
        self.kept: Kept = {}
        """What is below, in whichever life of the node."""
        self.counted: list[Metrics] = []
        """Of all namespaces that there ever were."""
        self._lives = 0
        self.alive = False
        self.epoch = 0
        self.namespaces: dict[Name, Namespace] = {}
        self.owners: dict[int, Connection] = {}
        """Those that have not ended, by life."""
        self._hangs_until_tick = 0
        self._unheard: dict[Connection | NodeEngine, list[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        """What has come since it hangs: from each in order."""
        self.begin()

    def next_life(self) -> int:
        """Return a number that no other life has, of whatever engine."""
        self._lives += 1
        return self._lives

    # ------------------------------------------------------------------ its own life

    def begin(self, _: object = None) -> None:
        """Begin a life, with nothing."""
        self.alive = True
        self.epoch += 1
        self.namespaces = {}
        if self._run.log:
            self._run.log.add(f"the node lives, epoch {self.epoch}")

    def die(self) -> None:
        """End at once. What it has said is still heard, and then its engines notice."""
        if self._run.log:
            self._run.log.add("the node dies")
        self.alive = False
        self._hangs_until_tick = 0
        self._unheard.clear()
        for namespace in self.namespaces.values():
            namespace.arena.is_over = True
        for connection in self.owners.values():
            self._run.clock.after(draw_delay(self._run), connection.engine.link.lost, connection)
        self.owners.clear()

    @property
    def hang_ticks_left(self) -> int:
        """How long it will neither hear nor say anything."""
        return max(0, self._hangs_until_tick - self._run.clock.now)

    def hang(self, ticks: int) -> None:
        """Do nothing for a while. Whoever connects or speaks meanwhile is heard after that."""
        if self._run.log:
            self._run.log.add(f"the node hangs for {ticks} ticks")
        self._hangs_until_tick = self._run.clock.now + ticks
        self._run.clock.after(ticks, self._go_on, self.epoch)

    def _go_on(self, epoch: int) -> None:
        """Hear what has come: from each in order, and in no order whose turn it is."""
        if epoch != self.epoch or not self.alive:
            return
        if self._run.log:
            self._run.log.add("the node goes on")
        while self._unheard:
            who = self._run.draw.pick(list(self._unheard))
            hear, what = self._unheard[who].pop(0)
            if not self._unheard[who]:
                del self._unheard[who]
            hear(self, who, *what)

    def check_at_rest(self) -> None:
        """All engines rest and are connected: nobody holds anything."""
        strangers = [str(owner) for owner in self.owners.values() if owner is not owner.engine.link.connection]
        if strangers:
            raise Violation("I5", f"the node keeps what {', '.join(strangers)} held, which is over")
        for namespace in self.namespaces.values():
            fill = namespace.local.fill()
            if fill.pinned or fill.free + fill.cached != fill.slots or namespace.index.quarantined_slots:
                raise Violation("I5", f"slots are held at the node when nothing runs: {fill}")
            if namespace.index.counts()["waiting"] or not namespace.is_idle:
                raise Violation("I5", "something waits for tiers, or they for something, when nothing runs")

    # ------------------------------------------------------------------ owners

    @when_it_works
    def attach(self, connection: Connection, in_use: Sequence[int]) -> None:
        """Somebody has connected. Of its earlier lives only those `in_use` may have copies under way."""
        if not self.alive or connection.broken:  # or it has hung up before the node came to it
            return
        for earlier in [each for each in self.owners.values() if each.engine is connection.engine]:
            if earlier.life not in in_use:
                self._end(earlier)
        name = self.namespace_of(connection)
        if name not in self.namespaces:
            self.namespaces[name] = Namespace(self._run, name, self)
        namespace = self.namespaces[name]
        connection.arena = namespace.arena
        namespace.index.attach(connection.life)
        self.owners[connection.life] = connection
        self.watch.attached(connection)
        connection.carry_here(connection.engine.link.welcome, None)

    def namespace_of(self, connection: Connection) -> Name:
        """Return the namespace that an engine has asked for (I15)."""
        return connection.namespace

    @when_it_works
    def closed(self, connection: Connection) -> None:
        """A connection is seen to be closed. What its owner holds stays."""
        connection.broken = True
        if connection.life in self.owners and not connection.closed:
            connection.closed = True
            self._index(connection).closed(connection.life)

    @when_it_works
    def exited(self, engine: NodeEngine) -> None:
        """No process of an engine lives any more, and that is known here."""
        if engine.link.connection is not None:
            engine.link.connection.broken = True
        for connection in [each for each in self.owners.values() if each.engine is engine]:
            self._end(connection)

    @when_it_works
    def hear_drained(self, connection: Connection, life: int) -> None:
        """An engine says that no copy of an earlier life of it is under way."""
        owner = self.owners.get(life)
        if owner is not None and self._is_heard(connection):
            self._end(owner)

    def _end(self, connection: Connection) -> None:
        self.closed(connection)
        del self.owners[connection.life]
        self._index(connection).ended(connection.life)
        self.watch.ended(connection)
        self._tell_notices(connection)

    def clear(self, name: Name) -> None:
        """An operator wants all blocks of a namespace to be forgotten."""
        namespace = self.namespaces[name]
        if self._run.log:
            self._run.log.add(f"namespace {name} is cleared")
        namespace.index.clear()
        namespace.take_events()
        self.watch.cleared(namespace.arena)
        if namespace.tiers is not None:
            namespace.tiers.due()

    # ------------------------------------------------------------------ calls

    @when_it_works
    def hear(self, connection: Connection, call: Call) -> None:
        """Do what an engine asks for, and answer."""
        if not self._is_heard(connection):
            return
        namespace = self._namespace(connection)
        reply = namespace.index.handle(connection.life, call)
        self.watch.handled(connection, call, reply, namespace.take_events())
        if namespace.tiers is not None:
            if isinstance(reply, Reserved):
                slots = [slot for taken in reply.taken for run in taken.runs for slot in run.slots]
                namespace.tiers.check_unused(slots, f"{connection} may write")
            namespace.tiers.due()
        if reply is not None:
            connection.carry_here(connection.engine.link.hear, reply)
        self._tell_notices(connection)
        namespace.index.rest()

    def _is_heard(self, connection: Connection) -> bool:
        return self.alive and self.owners.get(connection.life) is connection and not connection.closed

    def _tell_notices(self, about: Connection) -> None:
        notices = self._index(about).take_notices()
        self.watch.noticed(about, notices)
        for life, notice in notices:
            owner = self.owners[life]
            owner.carry_here(owner.engine.link.hear, notice)

    def tiers_moved(self, namespace: Namespace) -> None:
        """Something may have come up, or has not."""
        namespace.check_came_up(self.watch)
        for life, notice in namespace.index.take_notices():
            owner = self.owners[life]
            owner.carry_here(owner.engine.link.hear, notice)

    def _index(self, connection: Connection) -> SharedIndex:
        return self._namespace(connection).index

    def _namespace(self, connection: Connection) -> Namespace:
        assert connection.arena is not None
        return self.namespaces[connection.arena.namespace]
