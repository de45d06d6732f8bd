"""A life of the link may end, and the next one begin, before an engine has received anything that told so."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core import FullAttention, NotStored
from kvtide.core.chain import Chain
from kvtide.core.index.calls import Call, Found, Ready, Reply, Reserved, Run, Taken
from kvtide.core.index.index import Grant, Want
from kvtide.core.index.remote import RemoteIndex
from kvtide.core.index.reservations import ASK_S
from kvtide.core.match import Match, Piece
from kvtide.core.messages import Pool
from kvtide.core.requests import Request

KEY = b"k"


class FakeLink:
    """Keeps what is said, by the life in which it was said."""

    slots = 8

    def __init__(self) -> None:
        self.life: int | None = 1
        self.said: list[tuple[int | None, Call]] = []
        self.replies: list[Reply] = []
        self.lives_drained: list[int] = []

    @property
    def pool(self) -> Pool | None:
        return None if self.life is None else Pool(self.life, "epoch", 10 * self.life)

    def send(self, call: Call) -> None:
        self.said.append((self.life, call))

    def flush(self) -> None:
        """Everything is said at once."""

    def receive(self) -> Sequence[Reply]:
        replies, self.replies = self.replies, []
        return replies

    def wait(self, seconds: float) -> float:
        """Nothing comes."""
        return 0.0

    def hang_up(self) -> None:
        """End this life."""
        self.life = None

    def leave(self) -> None:
        self.life = None

    def drained(self, life: int) -> None:
        self.lives_drained.append(life)


def granted_run(link: FakeLink, index: RemoteIndex) -> Chain:
    """Be granted a slot in the first life."""
    grants: list[Grant] = []
    index.receive()
    index.grow(8)
    index.reserve([Want(Chain(0, [KEY], None, 4, [1]), needs_prefix=False, touch=False)], 1, grants.extend)
    link.replies = [Reserved(1, [Taken([Run(7, 0, [3])], [], {}, [], 1)])]
    index.receive()
    return grants[0].runs[0]


def found(link: FakeLink, index: RemoteIndex) -> Match:
    """Find a slot in the first life."""
    index.receive()
    index.grow(8)
    request = Request("r", [[KEY, b"l"]], [[]])
    index.look_up(request, 0, 8, lambda _: True)
    link.replies = [Found(1, 4, (Piece(0, 0, [3]),), {}, lease=9)]
    return index.look_up(request, 0, 8, lambda _: True)


def test_nothing_of_the_life_before_is_said_to_the_next() -> None:
    link = FakeLink()
    index = RemoteIndex(link, [FullAttention(4)])
    run = granted_run(link, index)
    link.life, link.said = 2, []
    assert index.settle([run], kept=True) is False
    index.grow(5)
    refused: list[Grant] = []
    index.reserve([Want(Chain(0, [KEY], None, 4, [1]), needs_prefix=False, touch=False)], 1, refused.extend)
    assert refused[0].refused == {NotStored.NODE_AWAY: 1}
    pools = [index.pool]
    assert link.said == []
    index.receive()
    assert link.said == [(2, Ready(0))], "what was ready was so in the life before"
    assert [*pools, index.pool] == [None, Pool(2, "epoch", 20)]
    assert link.lives_drained == [1]


def test_the_next_life_is_not_left_because_the_one_before_did_not_answer() -> None:
    link = FakeLink()
    index = RemoteIndex(link, [FullAttention(4)])
    index.receive()
    index.grow(8)
    answers: list[Grant] = []
    index.reserve([Want(Chain(0, [KEY], None, 4, [1]), needs_prefix=False, touch=False)], 1, answers.extend)
    for _ in range(int(ASK_S) - 1):
        index.passed(1.0)
    link.life = 2
    index.passed(1.0)
    index.receive()
    assert link.life == 2
    assert answers[0].refused == {NotStored.NODE_AWAY: 1}


def test_a_lease_of_the_life_before_is_not_returned_to_the_next_and_drains_the_first() -> None:
    link = FakeLink()
    index = RemoteIndex(link, [FullAttention(4)])
    lease = index.lease(found(link, index))
    link.life, link.said = 2, []
    index.receive()
    assert link.lives_drained == [], "it is still being read"
    index.release(lease)
    assert link.lives_drained == [1]
    assert link.said == [(2, Ready(0))]


def test_what_was_found_and_not_leased_does_not_keep_a_life_from_being_drained() -> None:
    link = FakeLink()
    index = RemoteIndex(link, [FullAttention(4)])
    assert found(link, index).tokens == 4
    link.life = None
    index.receive()
    assert link.lives_drained == [1]


def test_a_reset_leaves_also_if_only_the_host_is_to_be_forgotten() -> None:
    link = FakeLink()
    index = RemoteIndex(link, [FullAttention(4)])
    index.receive()
    index.reset(below=False)
    assert link.life is None
    assert link.lives_drained == [1]
