"""What holds for every index, in this process or elsewhere, whether answers come at once or a step later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtide.core import ChunkedLocal, FullAttention, NotLoaded, NotStored, SlidingWindow, StateSpace
from kvtide.core.groups import NULL_BLOCK, Group
from kvtide.core.index.index import RUN_BLOCKS_MAX, Grant
from kvtide.core.match import Piece
from tests.core.index.bench import KINDS, SIZE, Bench, bench_of, config_of, engine_of
from tests.memory_node import MemoryNode, local_index

FULL = (FullAttention(SIZE),)
WINDOW = (FullAttention(SIZE), SlidingWindow(SIZE, 2 * SIZE))
STATES = (FullAttention(SIZE), StateSpace(2 * SIZE))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bench(kind: str) -> Bench:
    return bench_of(kind, FULL)


# ---------------------------------------------------------------------- loading


def test_what_is_settled_is_found_and_what_is_not_is_not(bench: Bench) -> None:
    assert bench.found("a", 4) == 0
    (run,) = bench.store("a", 0, 3)
    match = bench.look_up(bench.request("a", 4))
    assert (match.device_tokens, match.tokens, match.num_tokens) == (0, 3 * SIZE, 4 * SIZE + 1)
    assert match.pieces == (Piece(0, 0, run.slots),)
    assert match.missed == {NotLoaded.NOT_CACHED: SIZE}
    assert bench.found("b", 4) == 0


def test_a_request_that_has_asked_in_vain_finds_what_was_stored_since(bench: Bench) -> None:
    request = bench.request("a", 2)
    assert bench.look_up(request).tokens == 0
    bench.store("a", 0, 2)
    bench.index.passed(1.0)
    assert bench.look_up(request).tokens == 2 * SIZE


def test_what_the_device_has_is_not_looked_for(bench: Bench) -> None:
    (run,) = bench.store("a", 0, 4)
    match = bench.look_up(bench.request("a", 4), device_tokens=2 * SIZE)
    assert (match.tokens, match.pieces) == (2 * SIZE, (Piece(0, 2, run.slots[2:]),))


def test_one_token_is_left_to_compute(bench: Bench) -> None:
    bench.store("a", 0, 4)
    match = bench.look_up(bench.request("a", 4, tail=0), num_tokens=4 * SIZE)
    assert (match.tokens, match.missed) == (3 * SIZE, {NotLoaded.LAST_TOKEN: SIZE})


def test_what_is_being_written_is_not_found(bench: Bench) -> None:
    bench.ask(bench.chain("a", 0, 2))
    match = bench.look_up(bench.request("a", 2))
    assert (match.tokens, match.missed) == (0, {NotLoaded.STILL_STORING: 2 * SIZE})


def test_what_does_not_pay_is_not_offered_and_not_kept(bench: Bench) -> None:
    bench.store("a", 0, 2)
    request = bench.request("a", 2)
    match = bench.look_up(request, pays=lambda tokens: tokens > 2 * SIZE)
    assert (match.tokens, match.pieces, match.missed) == (0, (), {NotLoaded.BELOW_BREAK_EVEN: 2 * SIZE})
    bench.index.release(bench.index.lease(match))
    bench.index.drop(request)
    assert bench.fill() == (14, 2, 0)


def test_whether_nothing_pays_is_not_asked(bench: Bench) -> None:
    assert bench.look_up(bench.request("a", 2), pays=lambda _: 1 / 0 > 0).missed == {NotLoaded.NOT_CACHED: 2 * SIZE}


def test_what_is_leased_is_not_evicted_and_stays_the_same(kind: str) -> None:
    bench = bench_of(kind, FULL, slots=4)
    (run,) = bench.store("a", 0, 2)
    match, lease = bench.lease("a", 2)
    assert lease.slots == run.slots
    written = bench.store("b", 0, 4)
    assert len(written) == 1
    assert not set(written[0].slots) & set(lease.slots)
    bench.store("c", 0, 4)
    again, other = bench.lease("a", 2)
    assert again.pieces == match.pieces
    bench.index.release(lease)
    bench.store("d", 0, 4)
    assert bench.found("a", 2) == 2 * SIZE, "somebody else has a lease as well"
    bench.index.release(other)
    assert bench.fill()[2] == 0
    assert len(bench.store("e", 0, 4)[0]) == 4
    assert bench.found("a", 2) == 0


def test_looking_twice_keeps_nothing_twice(bench: Bench) -> None:
    bench.store("a", 0, 2)
    request = bench.request("a", 2)
    first, second = bench.look_up(request), bench.look_up(request)
    assert (first.tokens, first.pieces) == (second.tokens, second.pieces)
    bench.index.release(bench.index.lease(second))
    assert bench.fill()[2] == 0


def test_a_request_that_keeps_its_reservation_finds_the_same_again(bench: Bench) -> None:
    bench.store("a", 0, 2)
    request = bench.request("a", 2)
    request.reservation = bench.look_up(request)
    request.lease = bench.index.lease(request.reservation)
    again = bench.look_up(request)
    assert again.pieces == request.reservation.pieces
    if again is not request.reservation:
        bench.index.release(bench.index.lease(again))
    bench.index.release(request.lease)
    assert bench.fill()[2] == 0


def test_whoever_needs_other_blocks_by_now_is_looked_up_again(bench: Bench) -> None:
    (run,) = bench.store("a", 0, 4)
    request = bench.request("a", 4)
    request.reservation = bench.look_up(request)
    request.lease = bench.index.lease(request.reservation)
    later = bench.look_up(request, device_tokens=SIZE)
    assert later.pieces == (Piece(0, 1, run.slots[1:]),)
    lease = bench.index.lease(later)
    bench.index.release(request.lease)
    assert bench.fill()[2] >= 3
    bench.index.release(lease)
    assert bench.fill()[2] == 0


@pytest.mark.parametrize("answered", [True, False])
def test_a_request_that_is_over_keeps_nothing(bench: Bench, answered: bool) -> None:
    bench.store("a", 0, 2)
    request = bench.request("a", 2)
    bench.index.look_up(request, 0, 2 * SIZE + 1, lambda _: True)
    if answered:
        bench.step()
    bench.index.drop(request)
    bench.index.drop(request)
    bench.step()
    assert bench.fill()[2] == 0


def test_a_lease_is_kept_for_a_part_of_its_slots(bench: Bench) -> None:
    bench.store("a", 0, 4)
    match, lease = bench.lease("a", 4)
    keep = match.slots[1:3]
    bench.index.release_part(lease, keep)
    assert all(bench.local.host._pins[slot] for slot in keep)
    bench.index.use(match)
    bench.index.release(lease)
    assert bench.fill()[2] == 0


def test_what_is_used_stays_longer_than_what_is_not(kind: str) -> None:
    bench = bench_of(kind, FULL, slots=4, policy="lru")
    bench.store("a", 0, 1)
    bench.store("b", 0, 3)
    match, lease = bench.lease("a", 1)
    bench.index.use(match)
    bench.index.release(lease)
    bench.step()
    bench.store("c", 0, 3)
    assert (bench.found("a", 1), bench.found("b", 1)) == (SIZE, 0)


def test_what_is_leased_and_not_used_stays_no_longer(kind: str) -> None:
    bench = bench_of(kind, FULL, slots=4, policy="lru")
    bench.store("a", 0, 1)
    bench.store("b", 0, 3)
    bench.index.release(bench.lease("a", 1)[1])
    bench.step()
    bench.store("c", 0, 1)
    assert (bench.found("a", 1), bench.found("b", 1)) == (0, SIZE)


# ---------------------------------------------------------------------- a part of an offer


@pytest.mark.parametrize("tokens", [1, SIZE, SIZE + 1, 3 * SIZE])
def test_a_part_of_an_offer_needs_the_blocks_up_to_there(bench: Bench, tokens: int) -> None:
    (run,) = bench.store("a", 0, 5)
    request = bench.request("a", 5)
    match = bench.look_up(request, device_tokens=SIZE)
    bench.index.lease(match)
    narrow = bench.index.narrow(request, match, SIZE + tokens)
    assert narrow is not None
    assert (narrow.tokens, narrow.device_tokens) == (tokens, SIZE)
    assert narrow.pieces == (Piece(0, 1, run.slots[1 : 1 + -(-tokens // SIZE)]),)


def test_a_lease_goes_on_with_what_a_part_needs(bench: Bench) -> None:
    bench.store("a", 0, 4)
    request = bench.request("a", 4)
    match = bench.look_up(request)
    lease = bench.index.lease(match)
    narrow = bench.index.narrow(request, match, SIZE)
    assert narrow is not None
    bench.index.release_part(lease, narrow.slots)
    bench.index.use(narrow)
    bench.store("b", 0, 12)
    bench.store("c", 0, 12)
    assert bench.local.host._pins[narrow.slots[0]] == 1
    bench.index.release(lease)
    assert bench.fill()[2] == 0


def stored_whole(bench: Bench, blocks: int) -> None:
    for index, group in enumerate(bench.groups):
        bench.store("a", 0, blocks * SIZE // group.block_tokens, index)


def test_a_window_is_found_by_its_last_blocks(kind: str) -> None:
    bench = bench_of(kind, WINDOW, slots=32)
    stored_whole(bench, 6)
    match = bench.look_up(bench.request("a", 6))
    assert match.tokens == 6 * SIZE
    assert [(piece.group, piece.first_block, len(piece.slots)) for piece in match.pieces] == [(0, 0, 6), (1, 4, 2)]


def test_a_part_of_an_offer_can_be_had_where_the_window_is_there_and_is_leased(kind: str) -> None:
    bench = bench_of(kind, WINDOW, slots=32)
    stored_whole(bench, 6)
    request = bench.request("a", 6)
    match = bench.look_up(request)
    lease = bench.index.lease(match)
    inside = bench.index.narrow(request, match, 6 * SIZE - 1)
    assert inside is not None
    assert inside.pieces == match.pieces
    before = bench.index.narrow(request, match, 4 * SIZE)
    assert (before is None) == (kind != "local"), "elsewhere, only what was leased can be had"
    bench.index.release(lease)


def test_a_window_that_is_not_there_cannot_be_resumed_from(kind: str) -> None:
    bench = bench_of(kind, WINDOW, slots=32)
    bench.store("a", 0, 6)
    bench.store("a", 4, 6, group=1)
    request = bench.request("a", 6)
    match = bench.look_up(request)
    bench.index.lease(match)
    assert match.tokens == 6 * SIZE
    assert bench.index.narrow(request, match, 3 * SIZE) is None


def test_a_state_is_found_where_it_ends_and_cannot_be_cut(kind: str) -> None:
    bench = bench_of(kind, STATES, slots=32)
    stored_whole(bench, 6)
    request = bench.request("a", 6)
    match = bench.look_up(request)
    bench.index.lease(match)
    assert [(piece.group, piece.first_block, len(piece.slots)) for piece in match.pieces] == [(0, 0, 6), (1, 2, 1)]
    assert bench.index.narrow(request, match, 5 * SIZE) is None
    assert bench.look_up(bench.request("a", 5)).tokens == 4 * SIZE
    assert bench.index.narrow(request, match, 6 * SIZE) is not None


def test_a_part_of_an_offer_leaves_out_groups_that_the_device_has(kind: str) -> None:
    bench = bench_of(kind, WINDOW, slots=32)
    stored_whole(bench, 6)
    request = bench.request("a", 6)
    match = bench.look_up(request, device_tokens=4 * SIZE)
    bench.index.lease(match)
    narrow = bench.index.narrow(request, match, 5 * SIZE)
    assert narrow is not None
    assert [(piece.group, piece.first_block, len(piece.slots)) for piece in narrow.pieces] == [(0, 4, 1), (1, 4, 1)]


def test_a_part_of_an_offer_leaves_out_groups_that_need_nothing_there(kind: str) -> None:
    bench = bench_of(kind, (FullAttention(SIZE), ChunkedLocal(SIZE, 2 * SIZE)), slots=32)
    stored_whole(bench, 3)
    request = bench.request("a", 3)
    match = bench.look_up(request)
    bench.index.lease(match)
    assert [piece.group for piece in match.pieces] == [0, 1]
    narrow = bench.index.narrow(request, match, 2 * SIZE)
    assert narrow is not None
    assert [piece.group for piece in narrow.pieces] == [0]


def test_a_prefix_that_needs_no_block_is_a_hit_all_the_same(kind: str) -> None:
    groups: tuple[Group, ...] = (ChunkedLocal(SIZE, 2 * SIZE),)
    bench = bench_of(kind, groups)
    request = bench.request("a", 2)
    match = bench.look_up(request)
    assert (match.tokens, match.pieces) == (2 * SIZE, ())
    bench.index.use(match)
    bench.index.release(bench.index.lease(match))
    narrow = bench.index.narrow(request, match, SIZE)
    assert narrow is None, "inside of the chunk something is needed"
    bench.index.drop(request)
    assert bench.fill() == (16, 0, 0)


# ---------------------------------------------------------------------- storing


def test_a_key_has_one_writer(bench: Bench) -> None:
    (first,) = bench.ask(bench.chain("a", 0, 3))
    (second,) = bench.ask(bench.chain("a", 0, 4))
    assert [run.keys for run in first.runs] == [bench.chain("a", 0, 3).keys]
    assert [run.keys for run in second.runs] == [bench.chain("a", 3, 4).keys]
    assert (second.reached, second.blocks) == (4, 1)
    bench.index.settle([*first.runs, *second.runs], kept=True)
    assert bench.fill() == (12, 4, 0)
    assert not bench.store("a", 0, 4)


def test_one_answer_for_each_chain_also_if_there_is_none(bench: Bench) -> None:
    answers: list[list[Grant]] = []
    bench.index.reserve([], 10, answers.append)
    assert answers == [[]]
    grants = bench.ask(bench.chain("a", 0, 1), bench.chain("a", 0, 2), bench.chain("b", 0, 0))
    assert [[len(run) for run in grant.runs] for grant in grants] == [[1], [1], []]
    assert [grant.reached for grant in grants] == [1, 2, 0]


def test_what_is_granted_has_slots_blocks_and_its_place(bench: Bench) -> None:
    bench.store("a", 1, 2)
    chain = bench.chain("a", 0, 4)
    (grant,) = bench.ask(chain)
    head, tail = grant.runs
    assert (head.keys, head.parent, head.end_tokens, head.blocks) == (chain.keys[:1], None, SIZE, [1])
    assert (tail.keys, tail.parent, tail.end_tokens, tail.blocks) == (chain.keys[2:], chain.keys[1], 3 * SIZE, [3, 4])
    assert len({*head.slots, *tail.slots}) == 3
    bench.index.settle(grant.runs, kept=True)
    assert bench.found("a", 4) == 4 * SIZE


@pytest.mark.parametrize("room", [-1, 0, 2])
def test_what_has_no_room_is_left(bench: Bench, room: int) -> None:
    chain = bench.chain("a", 0, 5)
    first, second = bench.ask(chain, bench.chain("b", 0, 2), room=room)
    there = max(0, room)
    assert sum(map(len, first.runs)) == first.blocks == first.reached == there
    (left,) = first.left
    assert (left.keys, left.end_tokens, left.blocks) == (
        chain.keys[there:],
        (there + 1) * SIZE,
        chain.blocks[there:],
    )
    assert left.parent == (chain.keys[there - 1] if there else None)
    assert [part.keys for part in second.left] == [bench.chain("b", 0, 2).keys]
    assert not first.refused
    assert not second.refused


def test_holes_that_have_no_room_are_left_one_by_one(bench: Bench) -> None:
    bench.store("a", 1, 2)
    (grant,) = bench.ask(bench.chain("a", 0, 3), room=0)
    keys = bench.chain("a", 0, 3).keys
    assert [part.keys for part in grant.left] == [keys[:1], keys[2:]]
    assert grant.reached == 0


def test_a_full_host_refuses_the_rest(kind: str) -> None:
    bench = bench_of(kind, FULL, slots=3)
    (grant,) = bench.ask(bench.chain("a", 0, 5))
    assert (grant.blocks, grant.reached, grant.left) == (3, 3, [])
    assert grant.refused == {NotStored.HOST_FULL: 2}
    (none,) = bench.ask(bench.chain("b", 0, 2))
    assert (none.runs, none.reached, none.refused) == ([], 0, {NotStored.HOST_FULL: 2})


def test_what_continues_nothing_is_refused_where_that_is_of_no_use(bench: Bench) -> None:
    (refused,) = bench.ask(bench.chain("a", 2, 4), needs_prefix=True)
    assert (refused.runs, refused.reached, refused.refused) == ([], 0, {NotStored.PREFIX_MISSING: 2})
    (taken,) = bench.ask(bench.chain("a", 2, 4))
    assert taken.blocks == 2
    (head, tail) = bench.ask(bench.chain("b", 0, 2), bench.chain("b", 2, 4), needs_prefix=True)
    assert (head.blocks, tail.blocks) == (2, 2), "what is being written counts"


def test_what_the_device_has_no_more_is_named_where_the_index_lacks_it(bench: Bench) -> None:
    bench.store("a", 0, 1)
    chain = bench.chain("a", 0, 4)
    chain.blocks[0] = chain.blocks[2] = NULL_BLOCK
    (grant,) = bench.ask(chain)
    assert (grant.gone, grant.reached) == ([2], 4)
    assert [run.keys for run in grant.runs] == [chain.keys[1:2], chain.keys[3:]]


def test_long_chains_are_granted_in_runs(kind: str) -> None:
    bench = bench_of(kind, FULL, slots=RUN_BLOCKS_MAX + 10)
    (grant,) = bench.ask(bench.chain("a", 0, RUN_BLOCKS_MAX + 2), room=RUN_BLOCKS_MAX + 2)
    assert [len(run) for run in grant.runs] == [RUN_BLOCKS_MAX, 2]
    assert grant.runs[1].end_tokens == (RUN_BLOCKS_MAX + 1) * SIZE
    bench.index.settle(grant.runs[1:], kept=True)
    bench.index.settle(grant.runs[:1], kept=True)
    assert bench.found("a", RUN_BLOCKS_MAX + 2) == (RUN_BLOCKS_MAX + 2) * SIZE


def test_what_is_abandoned_can_be_reserved_again(bench: Bench) -> None:
    (grant,) = bench.ask(bench.chain("a", 0, 3))
    assert bench.index.settle(grant.runs, kept=False)
    assert bench.fill() == (16, 0, 0)
    assert bench.found("a", 3) == 0
    assert len(bench.store("a", 0, 3)[0]) == 3
    assert bench.found("a", 3) == 3 * SIZE


def test_a_run_can_be_cut_and_the_rest_reserved_again(bench: Bench) -> None:
    chain = bench.chain("a", 0, 4)
    (grant,) = bench.ask(chain)
    (run,) = grant.runs
    slots, keys, blocks = list(run.slots), list(chain.keys), list(chain.blocks)
    rest = bench.index.cut(run, 1)
    assert (run.keys, run.slots, run.blocks) == (keys[:1], slots[:1], blocks[:1])
    assert (rest.keys, rest.parent, rest.end_tokens, rest.blocks) == (keys[1:], keys[0], 2 * SIZE, blocks[1:])
    assert bench.fill() == (15, 0, 0)
    (again,) = bench.ask(replace(rest))
    assert again.blocks == 3
    bench.index.settle([run], kept=True)
    assert bench.found("a", 4) == SIZE
    bench.index.settle(again.runs, kept=True)
    assert bench.found("a", 4) == 4 * SIZE


def test_what_is_touched_stays_longer_than_what_is_not(kind: str) -> None:
    bench = bench_of(kind, FULL, slots=4, policy="lru")
    bench.store("a", 0, 1)
    bench.store("b", 0, 3)
    (grant,) = bench.ask(bench.chain("a", 0, 1), touch=True)
    assert (grant.runs, grant.reached) == ([], 1)
    bench.store("c", 0, 3)
    assert (bench.found("a", 1), bench.found("b", 1)) == (SIZE, 0)


def test_what_is_asked_for_and_not_touched_stays_no_longer(kind: str) -> None:
    bench = bench_of(kind, FULL, slots=4, policy="lru")
    bench.store("a", 0, 1)
    bench.store("b", 0, 3)
    bench.ask(bench.chain("a", 0, 1))
    bench.store("c", 0, 1)
    assert (bench.found("a", 1), bench.found("b", 1)) == (0, SIZE)


def test_keys_of_groups_are_not_mixed_up(kind: str) -> None:
    bench = bench_of(kind, WINDOW)
    full, window = bench.ask(bench.chain("a", 0, 2), bench.chain("a", 0, 2, group=1))
    assert [run.group for run in (*full.runs, *window.runs)] == [0, 1]
    bench.index.settle(full.runs, kept=True)
    assert bench.found("a", 2) == 0
    bench.index.settle(window.runs, kept=True)
    assert bench.found("a", 2) == 2 * SIZE


# ---------------------------------------------------------------------- steps


def test_nothing_waits_when_nothing_is_asked_for(bench: Bench) -> None:
    assert not bench.index.waiting
    assert not bench.index.sinking
    bench.index.computed(100, 0.1)
    bench.index.late(7)
    assert bench.step() == []


def test_after_a_reset_nothing_of_before_is_found(bench: Bench) -> None:
    bench.store("a", 0, 2)
    match, lease = bench.lease("a", 2)
    assert match.tokens == 2 * SIZE
    bench.index.reset(below=True)
    bench.index.clear()
    assert bench.found("a", 2) == 0
    bench.index.release(lease)
    bench.store("a", 0, 2)
    assert bench.found("a", 2) == 2 * SIZE
    assert bench.fill() == (14, 2, 0)


def test_of_a_request_that_has_ended_nothing_waits_for_slots_that_do_not_come(kind: str) -> None:
    bench = bench_of(kind, FULL, slots=1)
    (grant,) = bench.ask(bench.chain("a", 0, 2), touch=True)
    assert (sum(map(len, grant.runs)), grant.left, grant.refused) == (1, [], {NotStored.HOST_FULL: 1})
    bench.index.settle(grant.runs, kept=True)


def test_slots_are_used_as_they_become_ready(kind: str) -> None:
    if kind == "local":
        bench = Bench(local_index(config_of(FULL, 4), slots_ready=0), FULL)
    else:
        bench = engine_of(MemoryNode(config_of(FULL, 4)), FULL, 0, later="later" in kind)
    (none,) = bench.ask(bench.chain("a", 0, 2))
    why = NotStored.HOST_FULL if kind == "local" else NotStored.NODE_LATE
    assert (none.runs, none.refused) == ([], {why: 2})
    bench.index.grow(2)
    bench.step()
    (some,) = bench.ask(bench.chain("a", 0, 2))
    assert sorted(some.runs[0].slots) == [0, 1]
    bench.index.settle(some.runs, kept=True)
    assert bench.found("a", 2) == 2 * SIZE
