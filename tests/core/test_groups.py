"""What each attention group needs to resume, and where all groups can."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from kvtide.core import (
    ChunkedLocal,
    FullAttention,
    Group,
    SlidingWindow,
    StateSpace,
    common_boundary,
    longest_resumable,
)
from kvtide.core.groups import Present

Layout = tuple[Group, ...]


def present_in(there: set[int]) -> Present:
    return lambda block: block in there


def can_resume(group: Group, floor: int, boundary: int, there: set[int]) -> bool:
    """Say it the plain way: each needed block is there, or ends at or before the floor."""
    needed = range(group.first_needed(boundary), boundary // group.block_tokens)
    return all(block in there or (block + 1) * group.block_tokens <= floor for block in needed)


def brute_force(groups: Layout, floor: int, limit: int, there: list[set[int]]) -> int:
    step = common_boundary(groups)
    for boundary in range(limit // step * step, floor, -step):
        if all(can_resume(group, floor, boundary, blocks) for group, blocks in zip(groups, there, strict=True)):
            return boundary
    return floor


# ---------------------------------------------------------------------- one rule each


@pytest.mark.parametrize("boundary", [0, 4, 8, 400])
def test_full_attention_needs_everything(boundary: int) -> None:
    assert FullAttention(4).first_needed(boundary) == 0


@pytest.mark.parametrize(
    ("boundary", "first"),
    # The token at the boundary sees itself and 4 tokens before it.
    [(0, 0), (4, 0), (5, 0), (7, 0), (8, 1), (11, 1), (12, 2), (16, 3)],
)
def test_a_sliding_window_needs_the_block_of_the_oldest_token_it_sees(boundary: int, first: int) -> None:
    assert SlidingWindow(4, window_tokens=5).first_needed(boundary) == first


@pytest.mark.parametrize("boundary", range(0, 64, 4))
def test_a_sliding_window_needs_exactly_the_blocks_of_the_tokens_it_sees(boundary: int) -> None:
    for window in range(2, 20):
        seen = {token // 4 for token in range(max(0, boundary - window + 1), boundary)}
        group = SlidingWindow(4, window_tokens=window)
        assert set(range(group.first_needed(boundary), boundary // 4)) == seen


@pytest.mark.parametrize(("boundary", "first"), [(0, 0), (4, 0), (8, 0), (12, 3), (16, 3), (20, 3), (24, 6)])
def test_chunked_local_attention_needs_the_blocks_of_its_own_chunk(boundary: int, first: int) -> None:
    assert ChunkedLocal(4, chunk_tokens=12).first_needed(boundary) == first


def test_chunked_local_attention_needs_nothing_right_after_a_chunk() -> None:
    group = ChunkedLocal(4, chunk_tokens=12)
    assert group.first_needed(24) == 24 // 4


@pytest.mark.parametrize(("boundary", "first"), [(0, 0), (8, 0), (16, 1), (80, 9)])
def test_a_state_space_needs_the_one_state_at_the_boundary(boundary: int, first: int) -> None:
    assert StateSpace(8).first_needed(boundary) == first


def test_the_base_class_has_no_rule() -> None:
    with pytest.raises(TypeError, match="first_needed"):
        Group(4)  # type: ignore[abstract]  # which is what is tested


@pytest.mark.parametrize(
    "group",
    [
        FullAttention(4),
        SlidingWindow(4, 2),
        SlidingWindow(4, 11),
        ChunkedLocal(4, 4),
        ChunkedLocal(4, 12),
        StateSpace(4),
    ],
)
def test_what_is_needed_first_never_falls_and_is_never_beyond_the_boundary(group: Group) -> None:
    firsts = [group.first_needed(boundary) for boundary in range(200)]
    assert firsts == sorted(firsts)
    assert all(0 <= first <= boundary // 4 for boundary, first in enumerate(firsts))


@pytest.mark.parametrize(
    ("groups", "boundary"),
    [
        ((FullAttention(16),), 16),
        ((FullAttention(16), SlidingWindow(4, 9)), 16),
        ((FullAttention(8), StateSpace(64), ChunkedLocal(16, 64)), 64),
    ],
)
def test_boundaries_end_a_block_in_every_group(groups: Layout, boundary: int) -> None:
    assert common_boundary(groups) == boundary


# ---------------------------------------------------------------------- all together


def test_nothing_there_means_nothing_beyond_the_floor() -> None:
    assert longest_resumable((FullAttention(4),), 8, 100, [present_in(set())]) == 8


def test_full_attention_ends_at_the_first_hole() -> None:
    assert longest_resumable((FullAttention(4),), 0, 40, [present_in({0, 1, 3, 4})]) == 8


def test_old_blocks_of_a_window_are_not_needed() -> None:
    groups = (FullAttention(4), SlidingWindow(4, 5))
    everything, window = set(range(10)), {9}
    assert longest_resumable(groups, 0, 40, [present_in(everything), present_in(window)]) == 40


def test_a_window_with_a_hole_resumes_before_it() -> None:
    groups = (SlidingWindow(4, 9),)
    assert longest_resumable(groups, 0, 40, [present_in({0, 1, 2, 3, 5, 7, 9})]) == 16


def test_a_state_space_resumes_at_its_last_state() -> None:
    groups = (FullAttention(4), StateSpace(8))
    assert longest_resumable(groups, 0, 80, [present_in(set(range(20))), present_in({2, 4})]) == 40


def test_only_chunk_ends_remain_when_local_blocks_are_gone() -> None:
    groups = (FullAttention(4), ChunkedLocal(4, 12))
    assert longest_resumable(groups, 0, 40, [present_in(set(range(10))), present_in(set())]) == 36


def test_blocks_before_the_floor_are_taken_as_there() -> None:
    groups = (FullAttention(4), SlidingWindow(4, 9))
    assert longest_resumable(groups, 8, 12, [present_in({2}), present_in({2})]) == 12


def test_the_limit_is_rounded_down_to_a_boundary() -> None:
    groups = (FullAttention(4), StateSpace(8))
    assert longest_resumable(groups, 0, 23, [present_in(set(range(9))), present_in(set(range(9)))]) == 16


def test_a_step_that_is_given_is_the_step() -> None:
    assert longest_resumable([SlidingWindow(4, 5)], 0, 12, [lambda _: True], step=8) == 8


def test_a_window_that_is_not_full_yet_begins_at_the_first_token() -> None:
    assert [SlidingWindow(1, 4).first_needed(boundary) for boundary in range(6)] == [0, 0, 0, 0, 1, 2]


def test_a_limit_below_the_floor_gives_the_floor() -> None:
    assert longest_resumable((FullAttention(4),), 8, 3, [present_in({0, 1, 2})]) == 8


@pytest.mark.parametrize("group", [FullAttention(4), SlidingWindow(4, 9), ChunkedLocal(4, 16), StateSpace(4)])
def test_no_block_is_looked_at_twice_in_one_round(group: Group) -> None:
    looked: list[int] = []

    def present(block: int) -> bool:
        looked.append(block)
        return block % 7 == 3

    group.longest(0, 400, 4, present)
    assert len(looked) == len(set(looked))


def any_group(block_tokens: int) -> st.SearchStrategy[Group]:
    return st.one_of(
        st.just(FullAttention(block_tokens)),
        st.builds(SlidingWindow, st.just(block_tokens), st.integers(2, 24)),
        st.builds(lambda chunk: ChunkedLocal(block_tokens, chunk * block_tokens), st.integers(1, 5)),
        st.just(StateSpace(block_tokens)),
    )


layouts = st.lists(st.sampled_from([1, 2, 4, 8]).flatmap(any_group), min_size=1, max_size=4).map(tuple)


@st.composite
def lookups(draw: st.DrawFn) -> tuple[Layout, int, int, list[set[int]]]:
    groups = draw(layouts)
    step = common_boundary(groups)
    blocks = draw(st.integers(0, 64))
    density = draw(st.sampled_from([0.3, 0.8, 0.95]))
    random = draw(st.randoms(use_true_random=False))
    there = [{block for block in range(blocks) if random.random() < density} for _ in groups]
    floor = draw(st.integers(0, 4)) * step
    return groups, floor, draw(st.integers(0, 80)), there


@given(lookups())
@example(((SlidingWindow(4, 9), StateSpace(8)), 0, 32, [{0, 1, 2, 4, 5, 6, 7}, {0, 1, 3}]))
def test_the_longest_boundary_is_what_trying_them_all_finds(case: tuple[Layout, int, int, list[set[int]]]) -> None:
    groups, floor, limit, there = case
    assert longest_resumable(groups, floor, limit, list(map(present_in, there))) == brute_force(*case)


@given(lookups(), st.integers(0, 63))
def test_a_floor_between_two_boundaries_is_returned_or_exceeded(
    case: tuple[Layout, int, int, list[set[int]]], floor: int
) -> None:
    groups, _, limit, there = case
    found = longest_resumable(groups, floor, limit, list(map(present_in, there)))
    assert found == brute_force(groups, floor, limit, there)
