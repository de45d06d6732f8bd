"""What an observer can know of a node: who may write what, and who leases what. Made from calls and answers alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvtide.core.groups import Key
from kvtide.sim.node.arena import Arena
from kvtide.sim.node.connection import Connection
from kvtide.sim.tokens import node_of_key, stamp

Named = tuple[Arena, int, Key]
"""A key of a group, and in whose memory."""
Place = tuple[Arena, int]
"""A slot, and in whose memory."""


@dataclass(slots=True, eq=False)
class Granted:
    """Blocks that a life may write."""

    owner: Connection
    arena: Arena
    group: int
    keys: list[Key]
    slots: list[int]
    void: bool = False
    """An operator has cleared the namespace since: nothing comes of it."""

    def named(self) -> list[Named]:
        """Return its keys."""
        return [(self.arena, self.group, key) for key in self.keys]

    def places(self) -> list[Place]:
        """Return its slots."""
        return [(self.arena, slot) for slot in self.slots]

    def cut(self, keep_blocks: int) -> Granted:
        """Keep the first blocks, and return the rest."""
        rest = Granted(self.owner, self.arena, self.group, self.keys[keep_blocks:], self.slots[keep_blocks:], self.void)
        del self.keys[keep_blocks:], self.slots[keep_blocks:]
        return rest


class Books:
    """Who holds what, by life."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        """All that there ever were."""
        self.runs: dict[tuple[int, int], Granted] = {}
        """By life and id."""
        self.leases: dict[tuple[int, int], frozenset[Place]] = {}
        """By life and id."""
        self.slot_writers: dict[Place, Connection] = {}
        self.key_writers: dict[Named, Connection] = {}
        self.relying: dict[Named, dict[int, Connection]] = {}
        """Who has offered a key while somebody else writes it, by life."""

    def content_of(self, owner: Connection, group: int, key: Key) -> int:
        """Return what an engine means by a key."""
        return stamp(node_of_key(key), owner.weights, group)

    def begin(self, run_id: int, run: Granted) -> None:
        """Enter what may be written."""
        self.runs[run.owner.life, run_id] = run
        self.slot_writers.update(dict.fromkeys(run.places(), run.owner))
        self.key_writers.update(dict.fromkeys(run.named(), run.owner))

    def end(self, run: Granted) -> None:
        """Nobody writes these any more."""
        for place in run.places():
            self.slot_writers.pop(place, None)
        for name in () if run.void else run.named():
            self.key_writers.pop(name, None)
            self.relying.pop(name, None)

    def clear(self, arena: Arena) -> None:
        """Enter that nothing comes of what is being written: others may write these keys."""
        for run in self.runs.values():
            if run.arena is arena and not run.void:
                run.void = True
                for name in run.named():
                    self.key_writers.pop(name, None)
                    self.relying.pop(name, None)

    def runs_of(self, life: int) -> list[Granted]:
        """Take out all that a life may write."""
        return [self.runs.pop(key) for key in [key for key in self.runs if key[0] == life]]

    def forget(self, life: int) -> None:
        """Enter that a life holds nothing any more."""
        for key in [key for key in self.leases if key[0] == life]:
            del self.leases[key]
        for relying in self.relying.values():
            relying.pop(life, None)

    def lessees(self, places: Iterable[Place]) -> Iterator[tuple[int, Place]]:
        """Yield the lives that have leased some of these."""
        places = set(places)
        for (life, _), leased in self.leases.items():
            for place in sorted(leased & places, key=lambda place: place[1]):
                yield life, place
