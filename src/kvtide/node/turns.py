"""Whose turn it is. An engine stands still while it looks something up, and for nothing else: that goes first."""

from __future__ import annotations

from kvtide.node.codec import Kind
from kvtide.node.peers import Peer


class Turns:
    """Those who have said something that is not answered. When it is its turn, one frame of each is."""

    def __init__(self) -> None:
        self._looking_up: dict[Peer, None] = {}
        self._others: dict[Peer, None] = {}

    def __bool__(self) -> bool:
        return bool(self._looking_up or self._others)

    def add(self, peer: Peer) -> None:
        """Let somebody wait for his turn, if he does not already."""
        (self._looking_up if peer.waiting[0].kind == Kind.LOOK_UP else self._others)[peer] = None

    def take(self) -> list[Peer]:
        """Return all who look something up, and one of the others: he who has waited longest."""
        now, self._looking_up = list(self._looking_up), {}
        for first in self._others:
            del self._others[first]
            return [*now, first]
        return now
