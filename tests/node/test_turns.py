"""Who looks something up is answered first, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from socket import socketpair

import pytest

from kvtide.node.codec import Kind
from kvtide.node.connection import Connection
from kvtide.node.credentials import Credentials
from kvtide.node.frames import Frame
from kvtide.node.peers import Peer
from kvtide.node.turns import Turns
from tests.node.support import ECHO, NOTE, held, serving, wait_until


class Waiting:
    """Peers that have said something."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._pair = socketpair()
        self._connection = Connection(self._pair[0])

    def peer(self, *kinds: Kind) -> Peer:
        peer = Peer(self._connection, Credentials(1, 1, frozenset()), 0.0)
        peer.waiting.extend(map(Frame, kinds))
        self.turns.add(peer)
        return peer

    def close(self) -> None:
        for each in self._pair:
            each.close()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    waiting = Waiting()
    yield waiting
    waiting.close()


def test_all_who_look_something_up_come_before_one_of_the_others(waiting: Waiting) -> None:
    storing = waiting.peer(Kind.RESERVE)
    first, second = waiting.peer(Kind.LOOK_UP), waiting.peer(Kind.LOOK_UP, Kind.RESERVE)
    assert waiting.turns.take() == [first, second, storing]
    assert not waiting.turns


def test_of_the_others_he_comes_first_who_has_waited_longest(waiting: Waiting) -> None:
    others = [waiting.peer(kind) for kind in (Kind.SETTLE, Kind.RESERVE, Kind.AGAIN)]
    for peer in others:
        waiting.turns.add(peer)  # waits already
    assert [waiting.turns.take() for _ in others] == [[peer] for peer in others]
    assert waiting.turns.take() == []


def test_however_many_look_something_up_one_of_the_others_comes_every_time(waiting: Waiting) -> None:
    others = [waiting.peer(Kind.RESERVE) for _ in range(5)]
    for peer in others:
        looking_up = waiting.peer(Kind.LOOK_UP)
        assert waiting.turns.take() == [looking_up, peer]


def test_an_engine_that_looks_something_up_does_not_wait_for_what_others_have_said_before(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        storing, looking_up = rig.scheduler("storing"), rig.scheduler("looking up")
        gate = held(rig)
        for _ in range(3):
            storing.send(NOTE)
        looking_up.send(ECHO)
        gate.set()
        wait_until(lambda: len(rig.handler.heard) == 4)
        assert rig.handler.heard == ["looking up", "storing", "storing", "storing"]


def test_what_an_engine_has_said_is_heard_before_it_is_over(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        scheduler = rig.scheduler()
        worker = rig.worker(scheduler)
        gate = held(rig)
        for _ in range(3):
            scheduler.send(NOTE)
        worker.close()  # with copies under way: its life is over
        gate.set()
        wait_until(lambda: ("ending", "engine") in rig.handler.told)
        assert rig.handler.heard == ["engine"] * 3
