"""Matching: the longest prefix that every group can resume from, and why it is not longer."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtide.core import (
    POLICIES,
    ChunkedLocal,
    FullAttention,
    Group,
    Match,
    Metrics,
    NotLoaded,
    SlidingWindow,
    StateSpace,
    common_boundary,
)
from kvtide.core.chain import Chain
from kvtide.core.events import EventStream
from kvtide.core.host_pool import HostPool
from kvtide.core.loading.load_break_even import FixedBreakEven
from kvtide.core.match import Matcher
from tests.support import World, keys_of, text

Layout = tuple[Group, ...]
ABSENT, WRITING, CACHED = range(3)


class Bench:
    """A host pool of which the test says what is in it, block by block."""

    def __init__(
        self,
        groups: Layout,
        *states: list[int],
        min_load_tokens: int = 0,
        tokens: int = 160,
        policy: str = "prefix",
        tail_first: bool = False,
    ) -> None:
        self.groups = groups
        self.tokens = text("a", tokens)
        self.keys = [keys_of(self.tokens, group.block_tokens, index) for index, group in enumerate(groups)]
        metrics = Metrics()
        self.host = HostPool(500, groups, policy, EventStream(False, metrics), metrics)
        self.states = [states[index] if index < len(states) else [] for index in range(len(groups))]
        for index, row in enumerate(self.states):
            blocks = list(enumerate(row[: len(self.keys[index])]))
            for block, state in blocks[::-1] if tail_first else blocks:
                if state != ABSENT:
                    self.put(index, block, state)
        self.matcher = Matcher(groups, self.host)
        self.pays = FixedBreakEven(min_load_tokens).pays

    def put(self, group: int, block: int, state: int) -> None:
        keys, size = self.keys[group], self.groups[group].block_tokens
        parent = keys[block - 1] if block else None
        chain = Chain(group, [keys[block]], parent, (block + 1) * size, slots=self.host.take(1))
        self.host.assign(chain)
        if state == CACHED:
            self.host.commit(chain)

    def match(self, device_tokens: int, num_tokens: int) -> Match:
        return self.matcher.match("r", self.keys, device_tokens, num_tokens, self.pays)

    def blocks(self, match: Match) -> dict[int, list[int]]:
        """Return the positions of the blocks of an offer, by group, as their slots say."""
        position = [
            {slot: block for block, slot in enumerate(self.host.slots_of(index, keys))}
            for index, keys in enumerate(self.keys)
        ]
        return {piece.group: [position[piece.group][slot] for slot in piece.slots] for piece in match.pieces}


def cached(count: int) -> list[int]:
    return [CACHED] * count


def test_an_empty_host_offers_nothing() -> None:
    match = Bench((FullAttention(4),)).match(0, 17)
    assert (match.tokens, match.pieces, match.slots) == (0, (), [])
    assert match.missed == {NotLoaded.NOT_CACHED: 16}


def test_the_whole_prefix_is_offered() -> None:
    bench = Bench((FullAttention(4),), cached(5))
    match = bench.match(0, 21)
    assert match.tokens == 20
    assert bench.blocks(match) == {0: [0, 1, 2, 3, 4]}
    assert not match.missed


def test_only_what_is_beyond_the_device_is_offered() -> None:
    bench = Bench((FullAttention(4),), cached(5))
    match = bench.match(12, 21)
    assert match.tokens == 8
    assert match.pieces[0].first_block == 3
    assert bench.blocks(match) == {0: [3, 4]}


def test_the_host_need_not_have_what_the_device_has() -> None:
    bench = Bench((FullAttention(4),), [ABSENT, ABSENT, CACHED, CACHED])
    assert bench.match(8, 17).tokens == 8
    assert bench.match(0, 17).tokens == 0


def test_one_token_is_left_to_compute() -> None:
    bench = Bench((FullAttention(4),), cached(5))
    match = bench.match(0, 20)
    assert match.tokens == 16
    assert match.missed == {NotLoaded.LAST_TOKEN: 4}


def test_a_last_block_that_is_not_there_is_not_blamed_on_the_last_token() -> None:
    bench = Bench((FullAttention(4),), cached(4))
    assert not bench.match(0, 20).missed


@pytest.mark.parametrize("num_tokens", [0, 1, 3])
def test_a_request_shorter_than_a_block_has_nothing_to_find(num_tokens: int) -> None:
    match = Bench((FullAttention(4),), cached(5)).match(0, num_tokens)
    assert (match.tokens, dict(match.missed)) == (0, {})


def test_a_block_on_its_way_is_not_offered_and_is_the_reason() -> None:
    match = Bench((FullAttention(4),), [CACHED, WRITING, CACHED]).match(0, 13)
    assert match.tokens == 4
    assert match.missed == {NotLoaded.STILL_STORING: 8}


def test_a_block_without_a_key_is_not_cached() -> None:
    bench = Bench((FullAttention(4),), cached(5), tokens=8)
    match = bench.match(0, 40)
    assert match.tokens == 8
    assert match.missed == {NotLoaded.NOT_CACHED: 28}


def test_a_group_that_cannot_resume_is_the_reason_when_another_has_its_blocks() -> None:
    match = Bench((FullAttention(4), SlidingWindow(4, 8)), cached(4), cached(2)).match(0, 17)
    assert match.tokens == 8
    assert match.missed == {NotLoaded.GROUP_CANNOT_RESUME: 8}


def test_blocks_that_no_group_has_are_not_cached() -> None:
    match = Bench((FullAttention(4), SlidingWindow(4, 8)), cached(2), cached(2)).match(0, 17)
    assert match.missed == {NotLoaded.NOT_CACHED: 8}


@pytest.mark.parametrize(
    ("full", "window", "why"),
    [
        ([CACHED, CACHED, WRITING], cached(3), NotLoaded.STILL_STORING),
        ([CACHED, CACHED, WRITING], [CACHED, CACHED, WRITING], NotLoaded.STILL_STORING),
        ([CACHED, CACHED, WRITING], cached(2), NotLoaded.NOT_CACHED),
        (cached(2), [CACHED, CACHED, WRITING], NotLoaded.NOT_CACHED),
        (cached(3), [CACHED, CACHED, WRITING], NotLoaded.STILL_STORING),
        (cached(3), cached(2), NotLoaded.GROUP_CANNOT_RESUME),
        (cached(2), cached(3), NotLoaded.GROUP_CANNOT_RESUME),
    ],
)
def test_the_reason_is_told_by_what_all_groups_have_of_the_next_blocks(
    full: list[int], window: list[int], why: NotLoaded
) -> None:
    match = Bench((FullAttention(4), SlidingWindow(4, 8)), full, window).match(0, 13)
    assert (match.tokens, dict(match.missed)) == (8, {why: 4})


def test_one_block_of_a_step_that_is_on_its_way_is_the_reason() -> None:
    match = Bench((FullAttention(8), SlidingWindow(4, 9)), cached(2), [CACHED, CACHED, CACHED, WRITING]).match(0, 17)
    assert (match.tokens, dict(match.missed)) == (8, {NotLoaded.STILL_STORING: 8})


def test_a_group_that_lacks_one_block_of_a_step_does_not_have_it() -> None:
    match = Bench((FullAttention(8), SlidingWindow(4, 9)), cached(1), [CACHED, CACHED, CACHED, WRITING]).match(0, 17)
    assert (match.tokens, dict(match.missed)) == (8, {NotLoaded.NOT_CACHED: 8})


def test_a_device_that_ends_within_a_step_is_told_what_the_whole_step_lacks() -> None:
    match = Bench((FullAttention(8), SlidingWindow(4, 9)), cached(2), [CACHED, CACHED, CACHED, WRITING]).match(12, 17)
    assert (match.tokens, dict(match.missed)) == (0, {NotLoaded.STILL_STORING: 4})


def test_the_last_token_is_the_reason_only_where_every_group_has_its_block() -> None:
    groups = (FullAttention(4), SlidingWindow(4, 8))
    assert dict(Bench(groups, cached(5), cached(5)).match(0, 20).missed) == {NotLoaded.LAST_TOKEN: 4}
    assert not Bench(groups, cached(5), cached(4)).match(0, 20).missed
    assert not Bench(groups, cached(4), cached(5)).match(0, 20).missed


def test_what_is_known_beyond_the_request_changes_nothing() -> None:
    match = Bench((FullAttention(4),), cached(8)).match(0, 16)
    assert (match.tokens, dict(match.missed)) == (12, {NotLoaded.LAST_TOKEN: 4})


def test_only_blocks_up_to_the_boundary_are_offered() -> None:
    bench = Bench((FullAttention(4), SlidingWindow(4, 5)), cached(6), [CACHED] * 3)
    match = bench.match(4, 25)
    assert match.tokens == 8
    assert bench.blocks(match) == {0: [1, 2], 1: [2]}


def test_a_window_resumes_where_it_is_whole() -> None:
    groups = (FullAttention(4), SlidingWindow(4, 8))
    # At 16 tokens blocks 2 and 3 are needed, at 12 tokens 1 and 2, at 8 tokens 0 and 1.
    assert Bench(groups, cached(4), [CACHED, CACHED, ABSENT, CACHED]).match(0, 17).tokens == 8


def test_old_window_blocks_that_the_device_has_need_not_be_on_the_host() -> None:
    bench = Bench((FullAttention(4), SlidingWindow(4, 8)), cached(4), [ABSENT, ABSENT, CACHED])
    assert bench.match(8, 13).tokens == 4


def test_the_oldest_block_of_a_window_is_not_offered_when_the_window_has_passed_it() -> None:
    groups = (FullAttention(4), SlidingWindow(4, 5))
    bench = Bench(groups, cached(5), [ABSENT, ABSENT, ABSENT, ABSENT, CACHED])
    match = bench.match(0, 21)
    assert match.tokens == 20
    assert bench.blocks(match) == {0: [0, 1, 2, 3, 4], 1: [4]}
    assert match.pieces[1].first_block == 4


def test_groups_with_other_block_sizes_meet_at_common_boundaries() -> None:
    groups = (FullAttention(4), StateSpace(16))
    bench = Bench(groups, cached(11), [ABSENT, CACHED])
    match = bench.match(0, 45)
    assert match.tokens == 32
    assert bench.blocks(match) == {0: [0, 1, 2, 3, 4, 5, 6, 7], 1: [1]}


def test_blocks_that_the_device_has_are_not_offered_again() -> None:
    bench = Bench((FullAttention(4), FullAttention(8)), cached(10), cached(5))
    match = bench.match(12, 33)  # in the middle of a block of the second group
    assert match.tokens == 20
    assert bench.blocks(match) == {0: [3, 4, 5, 6, 7], 1: [1, 2, 3]}


def test_a_chunk_end_can_be_offered_without_any_block() -> None:
    match = Bench((ChunkedLocal(4, 8),)).match(0, 18)
    assert (match.tokens, match.pieces) == (16, ())


@pytest.mark.parametrize(("least", "tokens"), [(0, 8), (1, 8), (8, 8), (9, 0), (1000, 0)])
def test_an_offer_below_the_break_even_is_not_made(least: int, tokens: int) -> None:
    match = Bench((FullAttention(4),), cached(2), min_load_tokens=least).match(0, 9)
    assert match.tokens == tokens
    assert bool(match.pieces) == bool(tokens)
    assert match.missed == ({} if tokens else {NotLoaded.BELOW_BREAK_EVEN: 8})


def test_matching_changes_nothing() -> None:
    bench = Bench((FullAttention(4), SlidingWindow(4, 9)), cached(5), cached(5))
    first, second = bench.match(0, 21), bench.match(0, 21)
    assert (first.tokens, first.pieces, first.missed) == (second.tokens, second.pieces, second.missed)
    assert bench.host.num_pinned() == 0


def test_pieces_of_a_boundary_inside_a_block_include_that_block() -> None:
    bench = Bench((FullAttention(4),), cached(5))
    pieces = bench.matcher.pieces(bench.keys, 4, 10)
    assert pieces is not None
    assert bench.blocks(Match("r", 4, 6, pieces)) == {0: [1, 2]}


def test_pieces_that_are_not_all_there_are_none() -> None:
    bench = Bench((FullAttention(4),), [CACHED, WRITING, ABSENT])
    assert bench.matcher.pieces(bench.keys, 0, 4) is not None
    assert bench.matcher.pieces(bench.keys, 0, 8) is None
    assert bench.matcher.pieces(bench.keys, 8, 12) is None


# ---------------------------------------------------------------------- against brute force


LAYOUTS: list[Layout] = [
    (FullAttention(4),),
    (SlidingWindow(4, 9),),
    (FullAttention(4), SlidingWindow(4, 9)),
    (FullAttention(8), SlidingWindow(4, 6)),
    (FullAttention(4), StateSpace(8)),
    (FullAttention(4), ChunkedLocal(4, 16), StateSpace(8)),
    (ChunkedLocal(2, 8), SlidingWindow(8, 20)),
]


@st.composite
def lookups(draw: st.DrawFn) -> tuple[Bench, int, int, int]:
    groups = draw(st.sampled_from(LAYOUTS))
    weights = draw(st.sampled_from([(1, 1, 6), (0, 1, 30), (0, 0, 1), (1, 0, 1)]))
    random = draw(st.randoms(use_true_random=False))
    states = [random.choices((ABSENT, WRITING, CACHED), weights, k=draw(st.integers(0, 24))) for _ in groups]
    least = draw(st.sampled_from([0, 0, 9]))
    bench = Bench(
        groups,
        *states,
        min_load_tokens=least,
        tokens=draw(st.integers(0, 96)),
        policy=draw(st.sampled_from(sorted(POLICIES))),
        tail_first=draw(st.booleans()),
    )
    return bench, draw(st.integers(0, 40)), draw(st.integers(1, 96)), least


def there(bench: Bench, index: int, block: int, device_tokens: int) -> bool:
    size = bench.groups[index].block_tokens
    if (block + 1) * size <= device_tokens:
        return True
    row = bench.states[index]
    return block < min(len(row), len(bench.keys[index])) and row[block] == CACHED


def needed(bench: Bench, index: int, boundary: int, device_tokens: int) -> list[int]:
    """Blocks of a group that resuming at `boundary` needs and the device does not have."""
    group = bench.groups[index]
    blocks = range(group.first_needed(boundary), boundary // group.block_tokens)
    return [block for block in blocks if (block + 1) * group.block_tokens > device_tokens]


def brute_force(bench: Bench, device_tokens: int, num_tokens: int) -> int:
    step = common_boundary(bench.groups)
    for boundary in range((num_tokens - 1) // step * step, device_tokens, -step):
        if all(
            there(bench, index, block, device_tokens)
            for index in range(len(bench.groups))
            for block in needed(bench, index, boundary, device_tokens)
        ):
            return boundary
    return device_tokens


@given(lookups())
def test_the_offer_is_what_trying_all_boundaries_finds(case: tuple[Bench, int, int, int]) -> None:
    bench, device_tokens, num_tokens, least = case
    match = bench.match(device_tokens, num_tokens)
    boundary = brute_force(bench, device_tokens, num_tokens)
    offer = boundary - device_tokens if boundary - device_tokens >= least else 0
    assert match.tokens == offer
    wanted = {index: needed(bench, index, boundary, device_tokens) for index in range(len(bench.groups))}
    assert bench.blocks(match) == ({index: blocks for index, blocks in wanted.items() if blocks} if offer else {})


@given(lookups())
def test_every_token_of_a_whole_block_is_offered_or_missed_for_a_reason(case: tuple[Bench, int, int, int]) -> None:
    bench, device_tokens, num_tokens, _ = case
    step = common_boundary(bench.groups)
    match = bench.match(device_tokens, num_tokens)
    missed = dict(match.missed)
    last = missed.pop(NotLoaded.LAST_TOKEN, 0)
    assert last in (0, step)
    assert all(tokens > 0 for tokens in missed.values())
    assert match.tokens + sum(missed.values()) == max(0, (num_tokens - 1) // step * step - device_tokens)


def test_a_part_of_an_offer_that_ends_inside_a_state_cannot_be_resumed_from() -> None:
    """Found by the simulator: the state at the end of the block has seen tokens that were not accepted."""
    world = World(groups=(FullAttention(4), StateSpace(8)), device_blocks=64)
    world.serve("r", text("a", 33), chunk=8)
    world.fill_device()
    request = world.add("again", text("a", 33))
    assert world.match(request).tokens == 32
    assert world.admit(request, accept=20)
    assert world.step().failed == ("again",)
