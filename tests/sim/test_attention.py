"""What the simulator says a model reads, written out by hand."""

from __future__ import annotations

import pytest

from kvtide.sim.attention import Boundaries, Chunked, Full, Sliding, State, blocks_to_resume


@pytest.mark.parametrize(
    ("attention", "position", "blocks"),
    [
        (Full(4), 12, [0, 1, 2]),
        (Full(4), 14, [0, 1, 2]),
        (Sliding(4, 5), 12, [2]),  # reads tokens 8 to 12, itself the last one
        (Sliding(4, 6), 12, [1, 2]),
        (Sliding(4, 2), 13, []),  # reads token 12, in the block that is not full yet
        (Chunked(4, 8), 12, [2]),
        (Chunked(4, 8), 16, []),
        (State(4), 12, [2]),
        (State(4), 0, []),
    ],
)
def test_blocks_that_resuming_needs(attention: Full, position: int, blocks: list[int]) -> None:
    assert list(blocks_to_resume(attention, position)) == blocks


def test_a_prefix_can_be_resumed_where_all_groups_have_what_they_need() -> None:
    boundaries = Boundaries((Full(2), Sliding(4, 5)))
    assert boundaries.step == 4
    six = [True] * 6
    assert boundaries.longest(0, 13, [six, [False, True, False]]) == 8
    assert boundaries.longest(8, 13, [six, [False, True]]) == 8
    assert boundaries.longest(0, 13, [six, [False, False, True]]) == 12


def test_what_lies_before_the_floor_counts_as_there() -> None:
    assert Boundaries((Full(4),)).longest(4, 12, [[False, True, True]]) == 12


def test_only_some_kinds_forget() -> None:
    assert [kind.forgets for kind in (Full(4), Sliding(4, 5), Chunked(4, 8), State(4))] == [False, True, True, True]
