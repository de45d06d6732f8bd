"""How ranks that hold the same KV find one arena, or agree that each has its own (F27)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvtide.copy import HostArena, arena, numa, shared_memory
from kvtide.copy.memory_left import MemoryLeft
from kvtide.core.share import ALL, Share
from kvtide.errors import CopyError
from kvtide.vllm.log import logger
from kvtide.vllm.sharing import ALONE, Sharing
from tests.left_behind import Before
from tests.vllm.meeting import Meeting, in_parallel

SLOTS, SLOT_BYTES = 9, 16


def open_all(ranks: int, sharers: int, node: Callable[[int], int | None] = lambda rank: None) -> list[HostArena]:
    meeting = Meeting(ranks)

    def open_one(rank: int) -> HostArena:
        sharing = Sharing(Share(rank % sharers, sharers), rank, meeting.gather)
        return sharing.open_arena(SLOTS, SLOT_BYTES, node=node(rank))

    return in_parallel(open_one, range(ranks))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said of copies."""
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *args: said.append(text % args))
    return said


def test_ranks_of_one_part_have_the_same_memory_and_those_of_another_have_not(lines: list[str]) -> None:
    before = Before()
    arenas = open_all(ranks=4, sharers=2)
    arenas[0].memory[3] = 5
    arenas[3].memory[4] = 6
    assert [host.memory[3:5, 0].tolist() for host in arenas] == [[5, 0], [5, 0], [0, 6], [0, 6]]
    assert [host.share for host in arenas] == [Share(0, 2), Share(1, 2), Share(0, 2), Share(1, 2)]
    assert all(host.shared and host.slots == SLOTS for host in arenas)
    for host in arenas:
        host.close()
    assert before.new_descriptors == []
    assert not lines


def test_who_shares_with_nobody_asks_nobody() -> None:
    host = ALONE.open_arena(SLOTS, SLOT_BYTES)
    assert (host.slots, host.shared, host.share) == (SLOTS, False, ALL)
    host.close()


def assert_each_has_its_own(arenas: list[HostArena], lines: list[str], why: str) -> None:
    for number, host in enumerate(arenas):
        host.memory[:] = number + 1
    assert [int(host.memory.min()) for host in arenas] == [1, 2, 3, 4]
    assert [(host.slots, host.shared, host.share) for host in arenas] == [(SLOTS // 2, False, ALL)] * 4
    (line,) = lines
    assert "that 2 ranks hold alike is kept by each of them, 4 blocks instead of 9" in line
    assert why in line
    for host in arenas:
        host.close()


def test_a_rank_that_cannot_map_leaves_each_rank_with_an_arena_of_its_own_in_the_same_memory(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    before, find = Before(), shared_memory.find
    opened: list[int] = []

    def refuse_one(offer: shared_memory.Offer) -> int:
        opened.append(offer.descriptor)
        if len(opened) == 3:
            raise CopyError("the test says so")
        return find(offer)

    monkeypatch.setattr(shared_memory, "find", refuse_one)
    assert_each_has_its_own(open_all(ranks=4, sharers=2), lines, "the test says so")
    assert before.new_descriptors == []


def test_memory_that_cannot_be_made_leaves_each_rank_with_an_arena_of_its_own(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    left = MemoryLeft(SLOTS * SLOT_BYTES - 1, "this machine has left")
    monkeypatch.setattr(arena, "memory_left", lambda: left)
    assert_each_has_its_own(open_all(ranks=4, sharers=2), lines, "that this machine has left")


@pytest.mark.parametrize(
    ("nodes", "placed"),
    [
        ([0, 0, 1, 1], [("one", [0]), ("one", [1])]),
        ([0, 1, None, 1], [("several", [0, 1]), ("one", [1])]),
        ([None, None, None, None], []),
    ],
)
def test_where_pages_come_from_is_said_once_for_each_part(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], nodes: list[int | None], placed: list[tuple[str, list[int]]]
) -> None:
    calls: list[tuple[str, list[int]]] = []
    monkeypatch.setattr(numa, "nodes", lambda: frozenset({0, 1}))
    monkeypatch.setattr(numa, "prefer_node", lambda _at, _size, node: calls.append(("one", [node])))
    monkeypatch.setattr(numa, "interleave_nodes", lambda _at, _size, several: calls.append(("several", [*several])))
    for host in open_all(4, 2, nodes.__getitem__):
        host.close()
    assert sorted(calls) == sorted(placed)
    assert not lines


def test_memory_that_may_not_be_placed_is_shared_all_the_same(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(numa, "nodes", lambda: frozenset({0, 1}))
    monkeypatch.setattr(numa, "prefer_node", forbid)
    arenas = open_all(2, 2, lambda _: 1)
    assert all(host.shared for host in arenas)
    assert len(lines) == 1
    assert "not bound to NUMA nodes {1}: PermissionError" in lines[0]
    for host in arenas:
        host.close()
