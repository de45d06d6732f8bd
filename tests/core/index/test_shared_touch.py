"""What a request had until now is offered when it ends: mostly a shared index has all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtide.core import FullAttention
from kvtide.core.index.calls import Offer, Settle, Taken
from tests.core.index.bench import SIZE
from tests.core.index.test_shared import A, B, Node, keys, unkept

BOTH = (FullAttention(SIZE), FullAttention(SIZE))


def ended(node: Node, name: str, blocks: int) -> Offer:
    return replace(node.offer(name, blocks), touch=True)


@pytest.fixture
def node() -> Node:
    return Node(groups=BOTH)


@pytest.fixture
def renewed(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Runs of slots that the policy was told of."""
    runs: list[list[int]] = []
    monkeypatch.setattr(node.local.host._policy, "renew", lambda run, *_: runs.append(list(run)))
    return runs


def known(blocks: int) -> Taken:
    return Taken([], [], {}, [], blocks)


def test_what_a_request_had_until_now_is_kept_longer_than_what_was_used_before() -> None:
    node = Node(slots=4)
    node.store(A, "a", 2)
    node.store(A, "b", 2)
    assert node.reserve(B, ended(node, "a", 2)) == [known(2)]
    node.store(A, "c", 2)
    assert (node.look_up(B, "a", 2).tokens, node.look_up(B, "b", 2).tokens) == (2 * SIZE, 0)


def test_what_is_still_being_written_is_known_too_and_the_rest_is_renewed() -> None:
    node = Node(slots=5)
    node.store(A, "a", 2)
    node.store(A, "b", 2)
    (taken,) = node.reserve(A, node.offer("a", 3, first=2))
    assert node.reserve(A, ended(node, "a", 3)) == [known(3)]
    node.say(A, Settle([taken.runs[0].id], kept=True))
    node.store(A, "c", 2)
    assert (node.look_up(B, "a", 3).tokens, node.look_up(B, "b", 2).tokens) == (3 * SIZE, 0)


def test_whoever_relies_on_what_another_writes_hears_when_it_does_not_come() -> None:
    node = Node()
    node.store(A, "a", 1)
    (taken,) = node.reserve(A, node.offer("a", 3, first=1))
    assert node.reserve(A, ended(node, "a", 3)) == [known(3)], "its own"
    assert node.reserve(B, ended(node, "a", 3)) == [known(3)]
    node.say(A, Settle([taken.runs[0].id], kept=False))
    assert node.shared.take_notices() == [(B, unkept("a", 1, 2))]


def test_what_is_all_there_is_renewed_once(node: Node, renewed: list[list[int]]) -> None:
    node.store(A, "a", 2)
    assert node.reserve(B, ended(node, "a", 2)) == [known(2)]
    assert renewed == [[0, 1]]


def test_what_is_lacking_is_granted_and_the_rest_is_renewed_once(node: Node, renewed: list[list[int]]) -> None:
    node.store(A, "a", 2)
    here = ended(node, "a", 2)
    there = replace(here, group=1, keys=keys("a", 2, 1))
    first, second = node.reserve(B, here, there)
    assert (first, [run.slots for run in second.runs], second.reached) == (known(2), [[2, 3]], 2)
    assert renewed == [[0, 1]]


def test_an_offer_that_was_not_in_use_until_now_renews_nothing(node: Node, renewed: list[list[int]]) -> None:
    node.store(A, "a", 2)
    assert node.reserve(B, node.offer("a", 2)) == [known(2)]
    assert renewed == []
