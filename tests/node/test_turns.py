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
from kvtide.node.turns import Turns, hear, may_say_more
from tests.node.support import ECHO, MANY, NOTE, held, serving, wait_to_read, wait_until


class Waiting:
    """Peers that have said something."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._pair = socketpair()
        self.connection = Connection(self._pair[0])

    def peer(self, *kinds: Kind) -> Peer:
        peer = Peer(self.connection, Credentials(1, 1, frozenset()), 0.0)
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


def heard(*kinds: Kind) -> list[Kind]:
    """Return in which order a node hears what one engine says in this order."""
    waiting = Waiting()
    peer = Peer(waiting.connection, Credentials(1, 1, frozenset()), 0.0)
    for kind in kinds:
        hear(peer, [Frame(kind)])
    waiting.close()
    return [Kind(frame.kind) for frame in peer.waiting]


def test_a_look_up_goes_before_what_its_engine_said_when_a_request_ended() -> None:
    ended = (Kind.RELEASE, Kind.RESERVE)
    assert heard(*ended, Kind.LOOK_UP) == [Kind.LOOK_UP, *ended]
    assert heard(*ended, Kind.LOOK_UP, Kind.RELEASE, Kind.LOOK_UP) == [Kind.LOOK_UP, Kind.LOOK_UP, *ended, Kind.RELEASE]


@pytest.mark.parametrize("kind", [Kind.SETTLE, Kind.CUT, Kind.READY, Kind.AGAIN, Kind.DROP])
def test_a_look_up_does_not_go_before_what_it_could_find_or_must_not(kind: Kind) -> None:
    assert heard(Kind.RESERVE, kind, Kind.RELEASE, Kind.LOOK_UP) == [Kind.RESERVE, kind, Kind.LOOK_UP, Kind.RELEASE]


def test_look_ups_and_all_the_rest_stay_in_order() -> None:
    waiting = Waiting()
    peer = Peer(waiting.connection, Credentials(1, 1, frozenset()), 0.0)
    kinds = (Kind.RELEASE, Kind.LOOK_UP, Kind.RESERVE, Kind.LOOK_UP, Kind.SETTLE, Kind.LOOK_UP)
    hear(peer, [Frame(kind, bytes([number])) for number, kind in enumerate(kinds)])
    waiting.close()
    assert [frame.body[0] for frame in peer.waiting] == [1, 3, 0, 2, 4, 5]


@pytest.mark.parametrize(("frames", "body_bytes"), [(32, 0), (4, 64 << 10), (1, 1 << 20)])
def test_who_has_said_enough_is_not_listened_to_until_some_of_it_is_answered(frames: int, body_bytes: int) -> None:
    waiting = Waiting()
    peer = Peer(waiting.connection, Credentials(1, 1, frozenset()), 0.0)
    for _ in range(frames):
        assert may_say_more(peer)
        hear(peer, [Frame(Kind.RESERVE, bytes(body_bytes))])
    assert not may_say_more(peer)
    peer.waiting.popleft()
    assert may_say_more(peer)
    waiting.close()


@pytest.mark.parametrize("kind", [Kind.SETTLE, Kind.LOOK_UP])
def test_who_could_say_nothing_that_goes_first_is_not_listened_to(kind: Kind) -> None:
    waiting = Waiting()
    peer = waiting.peer(Kind.RESERVE, kind)
    assert not may_say_more(peer)
    waiting.close()


def test_an_engine_that_looks_something_up_does_not_wait_for_the_end_of_its_last_request(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        storing, engine = rig.scheduler("storing"), rig.scheduler("looking up")
        gate = held(rig)
        storing.send(NOTE)
        engine.send(MANY)  # has the kind of a release
        engine.send(ECHO)
        gate.set()
        wait_to_read(engine)
        assert engine.poll()[0].kind == ECHO


def test_what_an_engine_said_before_it_hung_up_is_heard(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        storing, engine = rig.scheduler("storing"), rig.scheduler("hangs up")
        gate = held(rig)
        storing.send(NOTE)  # so that what the other one says has to wait
        engine.send(MANY)
        gate.set()
        engine.close()
        wait_until(lambda: "hangs up" in rig.handler.heard)


def test_a_node_rests_when_all_are_answered_and_goes_on_until_there_is_no_more_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as rig:
        engine = rig.scheduler()
        rests: list[int] = []

        def rest() -> bool:
            rests.append(len(rig.handler.heard))
            return len(rests) < 5

        gate = held(rig)
        monkeypatch.setattr(rig.handler, "rest", rest)
        for _ in range(3):
            engine.send(NOTE)
        gate.set()
        wait_until(lambda: len(rests) >= 5)
        assert set(rests) <= {0, 3}, "not between two answers"
        assert rests[-1] == 3


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
