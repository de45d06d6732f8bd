"""All checkers of a node behind one object that the simulated machine talks to."""

from __future__ import annotations

from kvtide.core.events import CacheEvent, Stored
from kvtide.core.index import calls
from kvtide.core.index.calls import Call, Found, Reply, Reserve, Reserved, Unkept
from kvtide.sim.copies import Job
from kvtide.sim.node.arena import Arena
from kvtide.sim.node.books import Books, Granted, Named
from kvtide.sim.node.checkers.base import NodeChecker
from kvtide.sim.node.checkers.clears import ClearsChecker
from kvtide.sim.node.checkers.commits import CommitsChecker
from kvtide.sim.node.checkers.leases import LeasesChecker
from kvtide.sim.node.checkers.namespaces import NamespacesChecker
from kvtide.sim.node.checkers.takeover import TakeoverChecker
from kvtide.sim.node.checkers.writers import WritersChecker
from kvtide.sim.node.connection import Connection

NODE_CHECKERS: tuple[type[NodeChecker], ...] = (
    WritersChecker,
    LeasesChecker,
    CommitsChecker,
    TakeoverChecker,
    NamespacesChecker,
    ClearsChecker,
)


class NodeWatch:
    """Brings the books up to date, and lets everybody hear of it. What is told of is explained in `NodeChecker`."""

    def __init__(self) -> None:
        self.books = Books()
        self._checkers = [checker(self.books) for checker in NODE_CHECKERS]
        self._by_life: dict[int, Connection] = {}
        self._asked: dict[tuple[int, int], calls.LookUp] = {}
        """Look-ups that are not over, by life and id."""

    def attached(self, connection: Connection) -> None:
        """A life has begun."""
        self.books.connections.append(connection)
        self._by_life[connection.life] = connection

    def handled(self, owner: Connection, call: Call, reply: Reply | None, events: list[CacheEvent]) -> None:
        """The index has done what somebody asked for."""
        committed: set[Named] = set()
        if isinstance(call, calls.Settle):
            committed = self._settled(owner, call)
        elif isinstance(call, calls.Cut):
            run = self.books.runs.get((owner.life, call.run))
            if run is not None:
                self._unkept(run.cut(call.keep_blocks))
        elif isinstance(call, calls.Release):
            self.books.leases.pop((owner.life, call.lease), None)
        elif isinstance(call, calls.LookUp | calls.Again | calls.Drop):
            self._looked_up(owner, call, reply)
        elif isinstance(call, Reserve) and isinstance(reply, Reserved):
            self._reserved(owner, call, reply)
        for event in events:
            if isinstance(event, Stored):
                for checker in self._checkers:
                    checker.visible(owner, event.group, list(event.keys), committed)

    def came_up(self, name: Named, slot: int) -> None:
        """Tiers have brought a key up, to this slot."""
        for checker in self._checkers:
            checker.came_up(name, slot)

    def cleared(self, arena: Arena) -> None:
        """An operator has cleared a namespace."""
        self.books.clear(arena)
        for checker in self._checkers:
            checker.cleared(arena)

    def ended(self, owner: Connection) -> None:
        """The node has let go of what a life held."""
        self.books.forget(owner.life)
        for run in self.books.runs_of(owner.life):
            self._unkept(run)

    def noticed(self, about: Connection, notices: list[tuple[int, Unkept]]) -> None:
        """Some were told that keys have not come."""
        assert about.arena is not None
        told = [
            (self._by_life[life], (about.arena, notice.chain.group, key))
            for life, notice in notices
            for key in notice.chain.keys
        ]
        for checker in self._checkers:
            checker.noticed(told)

    def copy_begins(self, life: int, job: Job) -> None:
        """A rank begins a copy."""
        for checker in self._checkers:
            checker.copy_begins(self._by_life[life], job)

    def at_end(self) -> None:
        """All engines rest."""
        for checker in self._checkers:
            checker.at_end()

    # ------------------------------------------------------------------ calls

    def _settled(self, owner: Connection, call: calls.Settle) -> set[Named]:
        committed: set[Named] = set()
        for run_id in call.runs:
            run = self.books.runs.pop((owner.life, run_id), None)
            if run is None:
                continue
            if run.void or not call.kept:
                self._unkept(run)
                continue
            for checker in self._checkers:
                checker.committed(run)
            committed.update(run.named())
            self.books.end(run)
        return committed

    def _unkept(self, run: Granted) -> None:
        for checker in self._checkers:
            checker.unkept(run)
        self.books.end(run)

    def _looked_up(self, owner: Connection, call: calls.LookUp | calls.Again | calls.Drop, found: Reply | None) -> None:
        """A look-up is over, or waits for what is below."""
        if isinstance(call, calls.LookUp):
            self._asked[owner.life, call.id] = call
        if isinstance(found, Found) and found.waits:
            return
        asked = self._asked.pop((owner.life, call.id), None)
        if asked is not None and isinstance(found, Found):
            self._found(owner, asked, found)

    def _found(self, owner: Connection, call: calls.LookUp, found: Found) -> None:
        assert owner.arena is not None
        for checker in self._checkers:
            checker.found(owner, call, found)
        if found.lease is not None:
            slots = [slot for piece in found.pieces for slot in piece.slots]
            self.books.leases[owner.life, found.lease] = frozenset((owner.arena, slot) for slot in slots)

    def _reserved(self, owner: Connection, call: Reserve, reply: Reserved) -> None:
        assert owner.arena is not None
        for offer, taken in zip(call.offers, reply.taken, strict=True):
            for position, key in enumerate(offer.keys):
                name = (owner.arena, offer.group, key)
                writer = self.books.key_writers.get(name)
                if writer is not None and writer is not owner and position not in offer.gone:
                    self.books.relying.setdefault(name, {})[owner.life] = owner
            for run in taken.runs:
                keys = list(offer.keys[run.first : run.first + len(run.slots)])
                granted = Granted(owner, owner.arena, offer.group, keys, list(run.slots))
                for checker in self._checkers:
                    checker.granted(granted)
                self.books.begin(run.id, granted)
