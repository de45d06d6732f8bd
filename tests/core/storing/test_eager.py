"""Eager mode: every full block that was computed is stored, or its loss is counted."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtide.core import ChunkedLocal, FullAttention, Group, NotStored, SlidingWindow, StateSpace
from kvtide.core.chain import Chain
from tests.support import World, keys_of, text

A = text("a", 32)
HYBRID = (FullAttention(4), SlidingWindow(4, 5))


def blocks_in(world: World) -> int:
    """Return how many blocks the next plan stores, without running it."""
    return sum(len(copy.blocks) for copy in world.plan().stores)


# ---------------------------------------------------------------------- while it runs


def test_blocks_are_stored_once_their_tokens_are_computed() -> None:
    world = World()
    request = world.begin("r", A)
    stored = []
    for upto in (3, 4, 11, 12, 13, 32):
        world.compute(request, upto)
        stored.append(blocks_in(world))
        for pending in list(world.pending.values()):
            world.run(pending.copy)
    assert stored == [0, 1, 1, 1, 0, 5]
    world.check()


def test_placeholders_are_not_stored() -> None:
    world = World()
    world.prefill("r", A, 32, tell=False)
    assert blocks_in(world) == 0
    world.manager.advance("r", 8)
    assert blocks_in(world) == 2


def test_tokens_that_fill_no_block_leave_nothing_to_do() -> None:
    world = World()
    request = world.prefill("r", A, 4)
    world.step()
    world.compute(request, 7)
    assert not world.manager.busy


def test_a_computed_block_whose_key_is_not_known_yet_waits_for_it() -> None:
    world = World()
    request = world.prefill("r", text("a", 6), 4)
    world._extend(request, 8)
    world.manager.advance("r", 8)  # the last tokens were sampled on the device and are not known on the host yet
    assert blocks_in(world) == 1
    world.append(request, text("a", 6, start=6))
    world.compute(request, 12)
    assert blocks_in(world) == 2


def test_a_block_that_never_got_a_key_is_counted() -> None:
    world = World()
    request = world.prefill("r", text("a", 6))
    world.manager.advance("r", 12)
    world.finish(request)
    assert world.manager.metrics.not_stored == {NotStored.NO_KEY: 2}


def test_what_is_stored_is_not_stored_again() -> None:
    world = World()
    world.serve("first", A)
    request = world.prefill("r", A)
    assert blocks_in(world) == 0
    world.finish(request)
    world.drain()
    assert world.manager.metrics.stored_blocks == 8


def test_what_is_being_stored_is_not_stored_again() -> None:
    world = World(pin_budget=32)
    for name in ("r1", "r2"):
        request = world.add(name, A)
        world.place(request, 0, 0)
        world.manager.admit(name, 0)
        world.compute(request)
        assert blocks_in(world) == (8 if name == "r1" else 0)


def test_requests_are_served_in_the_order_in_which_they_had_blocks() -> None:
    world = World(pin_budget=8)
    for name in "ab":
        world.prefill(name, text(name, 32))
    world.step()
    assert (len(world.cached_blocks(text("a", 32))), len(world.cached_blocks(text("b", 32)))) == (8, 0)
    world.step()
    assert len(world.cached_blocks(text("b", 32))) == 8


# ---------------------------------------------------------------------- at the end


def test_a_request_that_finishes_in_its_only_step_is_stored_whole() -> None:
    world = World()
    world.finish(world.prefill("r", A))
    world.drain()
    assert world.cached_blocks(A) == list(range(8))


def test_a_block_that_is_not_full_is_not_stored() -> None:
    world = World()
    world.serve("r", text("a", 31))
    assert world.manager.metrics.stored_blocks == 7
    assert not world.manager.metrics.not_stored


def test_a_request_that_computed_nothing_stores_nothing() -> None:
    world = World()
    world.finish(world.begin("r", A))
    world.finish(world.add("waiting", A))
    assert not world.manager.busy


def test_holes_are_filled_at_the_end() -> None:
    world = World(host_blocks=8)
    request = world.prefill("r", A)
    world.step()
    world.serve("other", text("b", 12))
    holes = set(range(8)) - set(world.cached_blocks(A))
    assert holes
    world.finish(request)
    world.drain()
    assert world.cached_blocks(A) == list(range(8))


def test_a_cut_prefix_is_not_chased_while_the_request_runs() -> None:
    world = World(host_blocks=8, device_blocks=40)
    requests = [world.begin(name, text(name, 40)) for name in "ab"]
    for upto in range(4, 41, 4):
        for request in requests:
            world.compute(request, upto)
        world.step()
    assert world.manager.metrics.stored_blocks <= 20, "two requests that do not both fit must not evict each other"
    for request in requests:
        world.finish(request)
    world.drain()


@pytest.mark.parametrize("pin_budget", [1, 8])
def test_a_full_host_is_not_asked_again_while_the_request_runs(pin_budget: int) -> None:
    world = World(host_blocks=4, pin_budget=pin_budget)
    world.serve("other", text("b", 17))
    reader = world.add("reader", text("b", 17))
    world.manager.reserve(world.manager.match("reader", 0, 17))  # keeps all slots
    request = world.prefill("r", A)
    assert not world.plan().stores
    assert not world.manager.busy, "nothing changes as long as nobody does anything"
    world.finish(reader)
    world.finish(request)
    world.drain()
    assert world.cached_blocks(A) == [0, 1, 2, 3], "the end asks once more"


def test_what_continues_a_cut_prefix_waits_for_the_end() -> None:
    world = World(host_blocks=4)
    request = world.prefill("r", A, 16)
    world.step()
    world.serve("other", text("b", 16))
    assert world.cached_blocks(A) == []
    world.compute(request, 20)
    assert not world.plan().stores, "a tail is of no use without its head"
    assert not world.manager.busy
    world.finish(request)
    world.drain()
    assert world.cached_blocks(A) == [0, 1, 2, 3]


@pytest.mark.parametrize("pin_budget", [1, 8])
def test_holes_before_and_behind_what_the_host_has_are_stored_in_order(pin_budget: int) -> None:
    world = World(pin_budget=pin_budget)
    first = world.prefill("first", A[:16])
    keys = first.keys[0]
    known = Chain(0, keys[2:3], keys[1], 12, slots=world.host_pool.take(1))
    world.host_pool.assign(known)  # being fetched, say
    stored: list[int] = []
    for _ in range(3):
        stored += [block for copy in world.plan().stores for block in copy.blocks]
        world.drain_copies()
    assert stored == [first.blocks[0][index] for index in (0, 1, 3)]
    assert not world.manager.busy


def test_the_prefix_of_a_request_that_ended_earlier_is_evicted_earlier() -> None:
    world = World(host_blocks=6)
    first, second = world.begin("first", text("a", 8)), world.begin("second", text("b", 16))
    for request in (second, first):
        world.compute(request)
        world.step()
    world.finish(first)
    world.finish(second)
    world.prefill("third", text("c", 4))
    world.step()
    assert world.cached_blocks(text("a", 8)) == [0]
    assert world.cached_blocks(text("b", 16)) == [0, 1, 2, 3]


def test_a_conversation_that_goes_on_is_stored_where_it_goes_on() -> None:
    world = World()
    world.serve("turn 1", A)
    world.serve("turn 2", A + text("more", 8))
    assert world.manager.metrics.stored_blocks == 10
    world.fill_device()
    world.serve("turn 3", A + text("more", 17))
    assert world.manager.metrics.loaded_tokens == 40
    assert world.manager.metrics.stored_blocks == 12


# ---------------------------------------------------------------------- windows


def test_window_blocks_are_stored_before_they_leave_the_window() -> None:
    world = World(groups=HYBRID)
    world.serve("r", text("a", 40), chunk=4)
    assert world.cached_blocks(text("a", 40), 1) == list(range(10))
    assert not world.manager.metrics.not_stored


def test_a_group_with_small_blocks_need_not_wait_for_one_with_large_ones() -> None:
    world = World(groups=(FullAttention(8), SlidingWindow(4, 9)))
    request = world.prefill("r", A, 4)
    (copy,) = world.plan().stores
    assert copy.blocks == tuple(request.blocks[1])
    world.run(copy)
    assert not world.manager.busy


def test_window_blocks_that_left_before_they_were_stored_are_counted_once() -> None:
    world = World(groups=HYBRID)
    request = world.begin("r", text("a", 40))
    for upto in range(4, 41, 4):
        world.compute(request, upto)
        world.slide(request)  # before the plan
    world.plan()
    world.finish(request)
    world.drain()
    assert world.cached_blocks(text("a", 40), 1) == [9]
    assert world.manager.metrics.not_stored == {NotStored.OUT_OF_WINDOW: 9}
    assert world.cached_blocks(text("a", 40), 0) == list(range(10))


def test_a_null_block_is_never_part_of_a_transfer() -> None:
    world = World(groups=HYBRID)
    request = world.prefill("r", text("a", 40))
    world.slide(request)
    world.finish(request)
    for copy in world.plan().stores:
        assert 0 not in copy.blocks


def test_groups_shrink_together_although_old_window_blocks_are_not_cached() -> None:
    world = World(groups=HYBRID, host_blocks=16, pin_budget=8)
    request = world.begin("r", text("a", 41))
    for upto in range(4, 41, 4):
        world.compute(request, upto)
        if upto >= 36:
            world.step()
        world.slide(request)
    world.finish(request)
    world.drain()
    assert world.cached_blocks(text("a", 41), 0) == list(range(10))
    assert world.cached_blocks(text("a", 41), 1) == [8, 9]
    world.serve("other", text("b", 17))
    full, window = world.cached_blocks(text("a", 41), 0), world.cached_blocks(text("a", 41), 1)
    assert len(full) < 10
    assert all(block <= full[-1] for block in window), "a window beyond what is left of the prefix is of no use"


# ---------------------------------------------------------------------- preemption


def test_a_preempted_request_is_stored_and_loads_back() -> None:
    world = World()
    request = world.prefill("r", text("a", 40), 32)
    world.preempt(request)
    world.step()
    world.fill_device()
    assert world.cached_blocks(A) == list(range(8))
    assert world.admit(request)
    world.step()
    assert request.computed == 32
    world.compute(request)
    world.finish(request)
    world.drain()
    assert len(world.cached_blocks(text("a", 40))) == 10


def test_preemption_may_be_told_after_the_blocks_were_freed() -> None:
    world = World()
    request = world.prefill("r", A)
    world._release(request)
    world.manager.preempt("r")
    world.step()
    assert world.cached_blocks(A) == list(range(8))
    assert not world.manager.metrics.not_stored


def test_what_left_its_window_and_is_still_on_the_device_is_stored_at_a_preemption() -> None:
    world = World(groups=HYBRID)
    request = world.prefill("r", A)
    world.slide(request)
    world.preempt(request)
    world.drain()
    assert (world.cached_blocks(A, 0), world.cached_blocks(A, 1)) == (list(range(8)), list(range(8)))
    assert not world.manager.metrics.not_stored


def test_a_request_that_ends_before_it_runs_again_has_nothing_to_store() -> None:
    world = World(groups=(FullAttention(1),), host_blocks=2)
    request = world.prefill("r", A[:2])
    world.step()
    world.preempt(request)
    world.serve("other", text("b", 2))
    world.finish(request)
    assert not world.plan().stores
    assert not world.manager.metrics.not_stored


def test_what_the_device_has_lost_when_a_preemption_is_told_is_counted() -> None:
    world = World()
    request = world.prefill("r", A)
    world._release(request)
    world.fill_device()
    world.manager.preempt("r")
    world.drain()
    assert world.manager.metrics.not_stored == {NotStored.EVICTED_FROM_DEVICE: 8}


def test_what_is_recomputed_after_a_preemption_is_storable_again() -> None:
    world = World(device_blocks=8, pin_budget=8)
    request = world.prefill("r", A)
    world.preempt(request)
    for _ in range(3):
        world.step(fails=lambda _: True)
    world.fill_device()
    world.step()
    assert world.cached_blocks(A) == []
    assert not world.admit(request)
    world.compute(request)
    world.step()
    assert world.cached_blocks(A) == list(range(8))


# ---------------------------------------------------------------------- reset


def test_nothing_of_a_request_that_ran_at_a_reset_is_stored() -> None:
    world = World()
    request = world.prefill("r", text("a", 40), 16)
    world.reset()
    world.compute(request, 40)
    world.step()
    world.finish(request)
    world.drain()
    assert world.manager.metrics.stored_blocks == 0
    assert world.manager.metrics.not_stored == {NotStored.RESET: 10}


def test_what_a_reset_costs_is_counted_in_every_group() -> None:
    world = World(groups=HYBRID)
    request = world.prefill("r", A)
    world.reset()
    world.finish(request)
    assert world.manager.metrics.not_stored == {NotStored.RESET: 16}


def test_a_request_preempted_after_a_reset_starts_again_and_is_stored() -> None:
    world = World()
    request = world.prefill("r", A)
    world.reset()
    world.preempt(request)
    assert not world.admit(request)
    world.compute(request)
    world.finish(request)
    world.drain()
    assert world.cached_blocks(A) == list(range(8))


# ---------------------------------------------------------------------- nothing is lost in silence


LAYOUTS: list[tuple[Group, ...]] = [
    (FullAttention(4),),
    HYBRID,
    (FullAttention(8), SlidingWindow(4, 9)),
    (FullAttention(4), ChunkedLocal(4, 8), StateSpace(8)),
]


@given(
    groups=st.sampled_from(LAYOUTS),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    chunk=st.integers(1, 40),
    budget=st.integers(1, 20),
    failures=st.lists(st.booleans(), max_size=20),
)
def test_every_computed_block_is_stored_or_its_loss_is_counted(
    groups: tuple[Group, ...], lengths: list[int], chunk: int, budget: int, failures: list[bool]
) -> None:
    world = World(groups=groups, host_blocks=400, device_blocks=100, pin_budget=budget)
    fate = iter(failures)
    for number, length in enumerate(lengths):
        tokens = text(f"t{number}.", length)
        request = world.begin(f"r{number}", tokens)
        while request.computed < length:
            world.compute(request, min(length, request.computed + chunk))
            world.step(fails=lambda _: next(fate, False))
            world.slide(request)
        world.finish(request)
    world.drain()
    computed = sum(length // group.block_tokens for length in lengths for group in groups)
    stored = world.manager.metrics.stored_blocks
    visible = sum(
        world.manager.is_cached(index, key)
        for number, length in enumerate(lengths)
        for index, group in enumerate(groups)
        for key in keys_of(text(f"t{number}.", length), group.block_tokens, index)
    )
    assert visible == stored
    lost = world.manager.metrics.not_stored
    # What failed for good while the request ran may still be saved, or be counted once more, by the flush.
    assert stored + sum(lost.values()) >= computed
    if not failures or not any(failures):
        assert stored + sum(lost.values()) == computed


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("groups", LAYOUTS)
def test_what_was_stored_is_what_was_computed(groups: tuple[Group, ...], ranks: int) -> None:
    world = World(groups=groups, ranks=ranks, host_blocks=200)
    for turn in range(1, 5):
        tokens = text("a", 11 * turn)
        world.serve(f"turn {turn}", tokens, chunk=7)
        world.check_visible(tokens)
        world.fill_device()
    assert world.manager.metrics.loaded_tokens > 0


def test_a_request_with_fewer_keys_than_blocks_that_it_needs_not_is_served() -> None:
    """Found by the simulator (seed 259): the plan looked for the key before the first needed block."""
    world = World(groups=(ChunkedLocal(4, 8),))
    request = world.add("r", text("a", 42))
    del request.keys[0][2:]
    world.manager.reserve(world.manager.match("r", 40, 42))
    request.blocks[0][:] = [0] * 10
    world.manager.admit("r", 0)
    world.manager.advance("r", 42)
    world.step()
    assert world.manager.gauges().slots_cached == 0
