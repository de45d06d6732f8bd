"""Kinds of visits: those that come back differently are told apart, and no others."""

from __future__ import annotations

import pytest

from kvtide.core.eviction.forecast import kinds


def test_each_kind_is_one_of_its_own_and_none_is_left_over() -> None:
    turns = [kinds.kind_of_turn(turn, soon=soon) for turn in (1, 2, 3) for soon in (False, True)]
    turns += [kinds.kind_of_turn(0, soon=False)]
    turns += [kinds.kind_of_turn(turn, soon=False, diverged=True) for turn in (1, 2)]
    shared = [kinds.kind_of_shared(uses) for uses in (1, 4, 16)]
    last = [kinds.kind_of_last_block(turn) for turn in (0, 1)]
    assert sorted([kinds.LEFT_BEHIND, *last, *shared, *turns]) == list(range(kinds.KINDS))
    assert kinds.RUNNING == kinds.KINDS
    assert [kind for kind in range(kinds.KINDS) if kinds.is_shared(kind)] == sorted(shared)
    assert min(turns) == kinds.FIRST_TURN, "those before it say nothing about the others"


@pytest.mark.parametrize("soon", [False, True])
def test_later_turns_are_of_one_kind(soon: bool) -> None:
    assert len({kinds.kind_of_turn(turn, soon=soon) for turn in range(3, 256)}) == 1
    assert len({kinds.kind_of_turn(turn, soon=soon, diverged=True) for turn in range(2, 256)}) == 1
    assert len({kinds.kind_of_last_block(turn) for turn in range(1, 256)}) == 1


def test_first_turns_come_after_nothing_and_cannot_diverge() -> None:
    ways = [(soon, diverged) for soon in (False, True) for diverged in (False, True)]
    assert {kinds.kind_of_turn(0, soon=soon, diverged=diverged) for soon, diverged in ways} == {kinds.FIRST_TURN}
    assert kinds.kind_of_turn(1, soon=False, diverged=True) == kinds.kind_of_turn(1, soon=True, diverged=True)


def test_shared_beginnings_are_used_up_to_3_times_up_to_15_or_more() -> None:
    few, some, many = (kinds.kind_of_shared(uses) for uses in (1, 4, 16))
    assert [kinds.kind_of_shared(uses) for uses in range(1, 256)] == [few] * 3 + [some] * 12 + [many] * 240
