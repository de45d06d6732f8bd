"""Look-ups that wait for a tier, and whose engines are not told so at once.

Whoever hears that he has to wait asks again a step later, and once more to hear the answer. But most disks know within
a millisecond or two that they have nothing, and an engine waits for an answer as long. So it is held back for a moment,
unless tiers took longer the last time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvtide.core.index.calls import Again, Found
from kvtide.node.codec import reply_frame
from kvtide.node.frames import Frame
from kvtide.node.owners import Owner
from kvtide.node.space import Space

HOLD_S = 0.0015
"""Engines wait 3 ms for an answer (`core.index.remote`), and a loop that sleeps wakes up to 1 ms too late."""


@dataclass
class HeldLookUps:
    """Of all namespaces. `later` calls back after so many seconds."""

    later: Callable[[float, Callable[[], None]], None]
    send: Callable[[Owner, Frame], None]
    _held: dict[tuple[int, int], tuple[Owner, Space, frozenset[int]]] = field(default_factory=dict)
    """By owner and the number that it has given to the look-up: what it waits for."""

    def hold(self, owner: Owner, space: Space, id_: int) -> None:
        """Let a look-up be answered soon."""
        self._held[owner.number, id_] = owner, space, space.index.errands_of(owner.number, id_)
        self.later(HOLD_S, lambda: self._answer(owner.number, id_))

    def forget(self, owner: Owner, id_: int | None = None) -> None:
        """Nobody waits for an answer to this look-up, or to any of an engine."""
        for name in [name for name in self._held if name[0] == owner.number and id_ in {None, name[1]}]:
            del self._held[name]

    def heard(self, space: Space) -> None:
        """Tiers of a namespace may have said something: answer those who need to hear it, or that it takes longer."""
        for (number, id_), (_, of, errands) in list(self._held.items()):
            if of is space and space.index.errands_of(number, id_) != errands:
                self._answer(number, id_)

    def _answer(self, number: int, id_: int) -> None:
        owner, space, _ = self._held.pop((number, id_), (None, None, None))
        if owner is None or space is None:
            return  # it was answered, or is not asked for any more
        found = space.index.handle(number, Again(id_))
        if isinstance(found, Found):
            self.send(owner, reply_frame(found))
