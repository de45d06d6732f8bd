"""Whose turn it is. An engine stands still while it looks something up, and for nothing else: that goes first."""

from __future__ import annotations

from collections.abc import Iterable

from kvtide.node.codec import Kind
from kvtide.node.frames import Frame
from kvtide.node.peers import Peer

_NOBODY_WAITS_FOR = (Kind.RELEASE, Kind.RESERVE)
"""A look-up finds no less before them than after them, but for an engine that has leased all that it may."""
_FRAMES_MAX = 32
_BYTES_MAX = 256 << 10
"""Who has said so much is not listened to until some of it is answered."""


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


def may_say_more(peer: Peer) -> bool:
    """Whether somebody is listened to: what waits for him does not grow without end."""
    waiting = peer.waiting
    if len(waiting) >= _FRAMES_MAX or any(frame.kind not in _NOBODY_WAITS_FOR for frame in waiting):
        return False  # he could say nothing that goes before that
    return sum(len(frame.body) for frame in waiting) < _BYTES_MAX


def hear(peer: Peer, frames: Iterable[Frame]) -> None:
    """Let frames wait. A look-up goes before what its engine has said when its last request ended."""
    waiting = peer.waiting
    for frame in frames:
        position = len(waiting)
        if frame.kind == Kind.LOOK_UP:
            while position and waiting[position - 1].kind in _NOBODY_WAITS_FOR:
                position -= 1
        waiting.insert(position, frame)
