"""Stores: within the pin budget, in transfers of a bounded size, tried again and counted when lost."""

from __future__ import annotations

import itertools

import pytest

from kvtide.core import Copy, FullAttention, NotStored, Report, SlidingWindow
from kvtide.core.chain import Chain
from kvtide.core.index import local as local_module
from kvtide.core.index.index import RUN_BLOCKS_MAX
from kvtide.core.index.local import LocalIndex
from kvtide.core.storing import stores as stores_module
from kvtide.core.storing.making_way import STEPS_IN_VAIN_MAX, WAY_STEPS
from kvtide.core.storing.stores import ATTEMPTS_MAX
from tests.support import FakeRequest, World, text

A = text("a", 32)


@pytest.fixture
def small_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (local_module, stores_module):
        monkeypatch.setattr(module, "RUN_BLOCKS_MAX", 4)


# ---------------------------------------------------------------------- from plan to visible


@pytest.mark.parametrize("ranks", [1, 3])
def test_keys_are_visible_when_every_rank_has_every_byte(ranks: int) -> None:
    world = World(ranks=ranks)
    world.prefill("r", A)
    (copy,) = world.plan().stores
    for rank in range(ranks):
        assert world.cached_blocks(A) == []
        world.run(copy, ranks=[rank])
    assert world.cached_blocks(A) == list(range(8))
    world.check()
    assert (world.manager.metrics.stored_blocks, world.manager.metrics.stores_failed) == (8, 0)


def test_device_blocks_are_pinned_until_the_store_has_ended() -> None:
    world = World(device_blocks=16, pin_budget=16)
    request = world.prefill("r", A)
    (copy,) = world.plan().stores
    world.finish(request)
    assert (world.manager.gauges().store_pins, world.pool.num_pinned) == (8, 8)
    world.run(copy)
    assert (world.manager.gauges().store_pins, world.pool.num_free) == (0, 16)


def test_a_plan_is_cut_into_transfers_of_bounded_size() -> None:
    world = World(device_blocks=600, host_blocks=600, pin_budget=600)
    world.prefill("r", text("a", 4 * 600))
    plan = world.plan()
    assert [len(copy.blocks) for copy in plan.stores] == [
        RUN_BLOCKS_MAX,
        RUN_BLOCKS_MAX,
        600 - 2 * RUN_BLOCKS_MAX,
    ]
    assert sorted(block for copy in plan.stores for block in copy.blocks) == list(range(1, 601))
    world.run(plan.stores[0])
    assert len(world.cached_blocks(text("a", 2400))) == RUN_BLOCKS_MAX, "the first ones are visible early"


def test_slots_of_two_lives_share_no_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, lives = LocalIndex._begin, itertools.count(1)

    def begin_in_another_life(self: LocalIndex, run: Chain) -> Chain | None:
        granted = begin(self, run)
        assert granted is not None
        granted.life = next(lives)
        return granted

    monkeypatch.setattr(LocalIndex, "_begin", begin_in_another_life)
    world = World(device_blocks=32, pin_budget=16)
    world.prefill("r", A)
    world.prefill("s", text("b", 8))
    assert [(copy.life, len(copy.slots)) for copy in world.plan().stores] == [(1, 8), (2, 2)]


def test_blocks_of_earlier_steps_need_not_wait_for_the_step_of_the_plan() -> None:
    world = World()
    request = world.prefill("r", A)
    assert [copy.filled for copy in world.plan().stores] == [True]
    world.finish(request)


def test_blocks_that_were_looked_up_by_key_may_be_filled_by_the_step_of_the_plan() -> None:
    """vLLM gives a block its key when it schedules the step that fills it."""
    world = World(pin_budget=4)
    world.finish(world.prefill("r", A))
    (first,) = world.plan().stores
    world.run(first)
    (rest,) = world.plan().stores
    assert (first.filled, rest.filled) == (True, False)
    preempted = world.prefill("preempted", text("b", 16))
    world.preempt(preempted)
    world.run(rest)
    assert [copy.filled for copy in world.plan().stores] == [False]


def test_small_stores_of_one_plan_share_a_transfer() -> None:
    world = World()
    for name in "abc":
        world.prefill(name, text(name, 8))
    assert [len(copy.blocks) for copy in world.plan().stores] == [6]


def test_a_chain_is_cut_into_its_blocks_if_need_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (local_module, stores_module):
        monkeypatch.setattr(module, "RUN_BLOCKS_MAX", 1)
    world = World()
    request = world.prefill("r", A[:8])
    assert [copy.blocks for copy in world.plan().stores] == [(block,) for block in request.blocks[0]]


@pytest.mark.usefixtures("small_transfers")
def test_small_stores_fill_up_the_last_transfer() -> None:
    world = World()
    for name, tokens in (("a", 16), ("b", 8), ("c", 8)):
        world.finish(world.prefill(name, text(name, tokens)))
    assert [len(copy.blocks) for copy in world.plan().stores] == [4, 4]


def test_what_is_tried_again_does_not_share_a_transfer_with_what_is_new() -> None:
    """Each has attempts of its own."""
    world = World(pin_budget=32)
    world.prefill("a", A)
    world.step(fails=lambda _: True)
    world.preempt(world.prefill("b", text("b", 32)))  # found by key, as what is tried again
    assert [len(copy.blocks) for copy in world.plan().stores] == [8, 8]


def test_what_was_stored_later_is_evicted_later() -> None:
    world = World(host_blocks=6)
    world.prefill("a", text("a", 8))
    world.step()
    world.prefill("b", text("b", 16))
    world.step()
    world.prefill("c", text("c", 4))
    world.step()
    assert world.cached_blocks(text("a", 8)) == [0]
    assert world.cached_blocks(text("b", 16)) == [0, 1, 2, 3]


def test_what_is_stored_after_a_reset_does_not_share_a_transfer_with_what_came_to_nothing() -> None:
    world = World(pin_budget=32)
    world.finish(world.prefill("before", A))  # begun, and not planned yet
    world.reset()
    world.finish(world.prefill("after", A))
    world.drain()
    assert world.cached_blocks(A) == list(range(8))
    assert world.manager.metrics.not_stored == {NotStored.RESET: 8}


@pytest.mark.usefixtures("small_transfers")
def test_transfers_of_one_prefix_may_end_in_any_order() -> None:
    world = World(pin_budget=32, host_blocks=8)
    request = world.prefill("r", A)
    first, second = world.plan().stores
    world.run(second)
    assert world.cached_blocks(A) == [4, 5, 6, 7]
    assert world.match(world.add("s", [*A, "x"])).tokens == 0, "a prefix without its beginning is of no use"
    world.run(first)
    world.finish(request)
    world.serve("t", text("b", 8))
    assert world.cached_blocks(A) == list(range(6)), "the children that came first protect their parents"


# ---------------------------------------------------------------------- without a place


@pytest.mark.parametrize("lost", [[0], [7], [2, 3, 5], list(range(8))])
def test_f10_blocks_that_one_rank_had_no_place_for_are_not_visible_and_are_counted(lost: list[int]) -> None:
    world = World(ranks=2, pin_budget=32)
    world.prefill("r", A)
    plan = world.plan()
    slots = [slot for copy in plan.stores for slot in copy.slots]
    for copy in plan.stores:
        world.run(copy, ranks=[1])
        missing = tuple(slots[at] for at in lost if slots[at] in copy.slots)
        world.run(copy, ranks=[0], not_kept=missing)
    stored = [at for at in range(8) if at not in lost]
    assert world.cached_blocks(A) == stored
    assert world.manager.metrics.not_stored == {NotStored.UNPACKED_FULL: len(lost)}
    assert world.manager.metrics.stored_blocks == len(stored)
    gauges = world.manager.gauges()
    assert (gauges.slots_writing, gauges.slots_pinned, gauges.store_pins) == (0, 0, 0)
    assert gauges.slots_free == gauges.slots - len(stored)


def test_what_follows_a_block_without_a_place_is_offered_once_that_has_one() -> None:
    world = World(pin_budget=32)
    request = world.prefill("r", A)
    (copy,) = world.plan().stores
    world.run(copy, not_kept=copy.slots[3:4])
    assert world.cached_blocks(A) == [0, 1, 2, 4, 5, 6, 7]
    world.finish(request)
    world.drain()
    world.fill_device()
    assert world.match(world.add("t", [*A, "x"])).tokens == 32


def test_a_chain_continues_a_block_that_is_kept_when_its_first_ones_are_not() -> None:
    world = World(pin_budget=32, host_blocks=9)
    world.serve("a", A)
    longer = world.prefill("b", text("a", 40))
    (copy,) = world.plan().stores
    world.run(copy, not_kept=copy.slots[:1])
    assert world.manager.gauges().slots_pinned == 0, "the block before it is kept no longer"
    world.finish(longer)
    world.drain()


# ---------------------------------------------------------------------- pin budget


def test_stores_never_pin_more_than_their_budget() -> None:
    world = World(pin_budget=3)
    request = world.prefill("r", A)
    sizes = []
    while len(world.cached_blocks(A)) < 8:
        plan = world.plan()
        world.check()
        sizes.append(sum(len(copy.blocks) for copy in plan.stores))
        for copy in plan.stores:
            world.run(copy)
    assert sizes == [3, 3, 2]
    world.finish(request)
    world.drain()


def test_no_store_starts_while_the_budget_is_used_up() -> None:
    world = World(pin_budget=3)
    world.prefill("r", A)
    (copy,) = world.plan().stores
    assert not world.plan().stores
    world.run(copy)
    assert world.plan().stores


def lives(world: World, request: FakeRequest, count: int) -> None:
    """Let a request be preempted so often, once in a step and each time at the same place."""
    for _ in range(count):
        world.preempt(request)
        world.plan()
        world.admit(request, accept=0)
        world.compute(request, 16)


def test_after_preemptions_at_the_same_place_nothing_is_pinned_until_a_request_is_over() -> None:
    world = World(pin_budget=32)
    request = world.prefill("r", A, 16)
    assert world.plan().stores, "they are not copied, and keep their pins"
    lives(world, request, 1 + STEPS_IN_VAIN_MAX)  # the first one was not in vain
    other = world.prefill("other", text("b", 16))
    assert world.plan().stores == ()
    world.finish(other)
    assert world.plan().stores
    world.finish(request)
    world.drain()
    assert world.cached_blocks(A[:16]) == world.cached_blocks(text("b", 16)) == [0, 1, 2, 3]


def make_way(world: World) -> FakeRequest:
    """Let stores make way for a request that is preempted again and again. They have pins until they are drained."""
    request = world.prefill("r", A, 16)
    assert world.plan().stores
    lives(world, request, 1 + STEPS_IN_VAIN_MAX)
    return request


def test_in_a_long_run_stores_go_on_once_somebody_got_further() -> None:
    world = World(pin_budget=32)
    request = make_way(world)
    other = world.prefill("other", text("b", 16), 4)
    world.drain_copies()
    for _ in range(WAY_STEPS):
        assert world.plan().stores == ()
    assert world.plan().stores == (), "nobody got further since"
    world.compute(other, 8)
    assert world.plan().stores
    world.drain()
    world.finish(request)


def test_an_idle_engine_comes_to_rest_while_stores_make_way() -> None:
    world = World(pin_budget=32)
    make_way(world)
    world.prefill("other", text("b", 16))
    world.preempt(world.prefill("waits", text("c", 16)))
    assert world.manager.gauges().backlog_blocks
    for _ in range(3):
        world.step(idle=True)
    assert not world.manager.busy


def test_loads_that_fail_are_no_lives_in_vain() -> None:
    world = World(device_blocks=64, host_blocks=128, pin_budget=16)
    requests = [world.prefill(name, text(name, 9), 8) for name in "abcdef"]
    for request in requests:
        world.preempt(request)
    world.drain()
    world.fill_device()
    world.prefill("pinned", text("p", 8))
    assert world.plan().stores
    for request in requests:
        world.admit(request)
        (load,) = world.plan().loads
        world.run(load, why="broken")
    world.prefill("other", text("o", 8))
    assert world.plan().stores


def test_requests_that_lose_their_blocks_for_the_first_time_have_not_lived_in_vain() -> None:
    world = World(device_blocks=64, pin_budget=64)
    requests = [world.prefill(name, text(name, 16)) for name in "abcdef"]
    for request in requests:
        world.plan()
        world.preempt(request)
    world.plan()
    world.prefill("other", text("o", 8))
    assert world.plan().stores


def test_several_requests_that_lose_their_blocks_in_one_step_are_one_step_in_vain() -> None:
    world = World(device_blocks=64, pin_budget=64)
    requests = [world.prefill(name, text(name, 16)) for name in "abcdef"]
    assert world.plan().stores
    for _ in range(2):
        for request in requests:
            world.preempt(request)
        world.plan()
        for request in requests:
            world.admit(request, accept=0)
            world.compute(request)
    world.prefill("other", text("o", 8))
    assert world.plan().stores


def test_engines_that_do_not_say_how_far_a_request_is_have_stores_all_the_same() -> None:
    world = World(pin_budget=32)
    world.prefill("other", text("b", 16))
    assert world.plan().stores
    request = world.prefill("r", A, 16, tell=False)
    for _ in range(2 * STEPS_IN_VAIN_MAX):
        world.preempt(request)
        world.plan()
        world.admit(request, accept=0)
        world.compute(request, 16, tell=False)
    world.prefill("more", text("c", 16))
    assert world.plan().stores


def test_preemptions_between_which_somebody_gets_further_change_nothing() -> None:
    world = World(pin_budget=32)
    request, other = world.prefill("r", A, 16), world.prefill("other", text("b", 16), 4)
    assert world.plan().stores
    for upto in (8, 12, 16):
        lives(world, request, STEPS_IN_VAIN_MAX - 1)
        world.compute(other, upto)
        assert world.plan().stores


def test_preemptions_while_nothing_is_pinned_change_nothing() -> None:
    world = World(pin_budget=32)
    request = world.prefill("r", A, 16)
    world.step()
    for _ in range(2 * STEPS_IN_VAIN_MAX):
        lives(world, request, 1)
        world.drain_copies()
    world.prefill("other", text("b", 16))
    assert world.plan().stores


def test_what_is_over_the_budget_at_the_end_waits_and_is_stored_from_the_free_queue() -> None:
    world = World(pin_budget=3)
    world.finish(world.prefill("r", A))
    assert world.manager.gauges().backlog_blocks == 5
    assert world.manager.busy
    world.drain()
    assert world.cached_blocks(A) == list(range(8))
    assert not world.manager.metrics.not_stored


def test_a_gauge_says_how_many_blocks_wait() -> None:
    world = World(pin_budget=3)
    for name in "abc":
        world.finish(world.prefill(name, text(name, 16)))
    waiting = []
    while world.manager.busy:
        waiting.append(world.manager.gauges().backlog_blocks)
        world.step()
    assert waiting == [9, 9, 6, 3]


def test_what_waits_again_is_not_too_much_because_it_has_waited_before() -> None:
    world = World(device_blocks=16, pin_budget=1)
    world.finish(world.prefill("r", text("a", 64)))
    world.drain()
    assert world.manager.metrics.stored_blocks == 16
    assert not world.manager.metrics.not_stored


@pytest.mark.usefixtures("small_transfers")
def test_a_tail_is_not_lost_because_its_head_waits_for_room() -> None:
    world = World(pin_budget=8)
    world.prefill("a", A)
    world.step(fails=lambda _: True)  # the head and the tail have to be tried again
    world.finish(world.prefill("b", text("b", 28)))  # and there is room for one block
    assert world.manager.gauges().store_pins == 7
    world.plan()
    world.drain_copies()
    world.finish(world.requests["a"])
    world.drain()
    assert not world.manager.metrics.not_stored
    assert world.cached_blocks(A) == list(range(8))


def test_a_store_that_uses_the_budget_up_leaves_nothing_to_wait_for() -> None:
    world = World(pin_budget=8)
    world.finish(world.prefill("r", A))
    world.step()
    assert not world.manager.busy


def test_what_waited_too_long_is_counted() -> None:
    world = World(pin_budget=3, device_blocks=8)
    world.finish(world.prefill("r", A))
    world.fill_device()  # someone else needs the blocks that are not pinned
    world.drain()
    assert world.cached_blocks(A) == [0, 1, 2]
    assert world.manager.metrics.not_stored == {NotStored.EVICTED_FROM_DEVICE: 5}


def test_what_continues_a_block_that_was_lost_is_lost_too() -> None:
    world = World(pin_budget=1)
    request = world.prefill("r", text("a", 16))
    blocks = list(request.blocks[0])
    world.finish(request)
    world.pool._forget(blocks[2])
    world.drain()
    assert world.cached_blocks(text("a", 16)) == [0, 1]
    assert world.manager.metrics.not_stored == {NotStored.EVICTED_FROM_DEVICE: 1, NotStored.PREFIX_MISSING: 1}


def test_a_window_block_is_of_use_without_the_block_before_it() -> None:
    world = World(pin_budget=1, groups=(SlidingWindow(4, 5),))
    request = world.prefill("r", text("a", 16))
    blocks = list(request.blocks[0])
    world.finish(request)
    world.pool._forget(blocks[2])
    world.drain()
    assert world.cached_blocks(text("a", 16)) == [0, 1, 3]
    assert world.manager.metrics.not_stored == {NotStored.EVICTED_FROM_DEVICE: 1}


def test_what_was_begun_goes_on_before_others_of_its_length() -> None:
    world = World(pin_budget=1)
    first, second = world.prefill("a", text("a", 8)), world.prefill("b", text("b", 8))
    (_, tail_of_a), (head_of_b, tail_of_b) = list(first.blocks[0]), list(second.blocks[0])
    world.finish(first)
    world.finish(second)
    started: list[int] = []
    for _ in range(4):
        (copy,) = world.plan().stores
        started += copy.blocks
        world.run(copy)
    assert started[1:] == [head_of_b, tail_of_b, tail_of_a]


def test_whose_request_has_ended_first_is_stored_first() -> None:
    world = World(pin_budget=1)
    requests = [world.prefill(name, text(name, 4)) for name in "abc"]
    blocks = [request.blocks[0][0] for request in requests]
    for request in requests:
        world.finish(request)
    started: list[int] = []
    for _ in range(3):
        (copy,) = world.plan().stores
        started += copy.blocks
        world.run(copy)
    assert started == blocks


def test_what_waits_is_bounded_by_the_device_pool() -> None:
    world = World(pin_budget=1, device_blocks=4)
    for name in "abcd":  # each finds the device empty again
        world.finish(world.prefill(name, text(name, 12)))
        world.fill_device()
        assert world.manager.gauges().backlog_blocks <= 4
    lost = world.manager.metrics.not_stored
    assert lost[NotStored.QUEUE_FULL] > 0
    world.drain()
    assert world.manager.metrics.stored_blocks + sum(lost.values()) == 12


# ---------------------------------------------------------------------- host full


def test_a_full_host_costs_blocks_and_says_so() -> None:
    world = World(host_blocks=3)
    world.finish(world.prefill("r", A))
    world.drain()
    assert world.cached_blocks(A) == [0, 1, 2]
    assert world.manager.metrics.not_stored[NotStored.HOST_FULL] == 5


def test_the_parent_is_not_evicted_to_make_room_for_its_own_child() -> None:
    for policy in ("prefix", "lru"):
        world = World(host_blocks=1, policy=policy)
        request = world.begin("r", text("a", 8))
        for upto in (4, 8):
            world.compute(request, upto)
            world.step()
        assert world.cached_blocks(text("a", 8)) == [0]
        world.finish(request)
        world.drain()
        assert world.cached_blocks(text("a", 8)) == [0]


# ---------------------------------------------------------------------- failures


def test_a_failed_store_leaves_nothing_visible_and_is_tried_again() -> None:
    world = World()
    world.prefill("r", A)
    world.step(fails=lambda _: True)
    assert world.cached_blocks(A) == []
    assert world.manager.metrics.stores_failed == 1
    assert world.manager.gauges().slots_free == world.manager.gauges().slots
    assert world.manager.busy
    world.step()
    assert world.cached_blocks(A) == list(range(8))
    world.check()


def test_what_failed_first_is_tried_again_first() -> None:
    world = World()
    blocks: list[int] = []
    for name in "ab":
        request = world.prefill(name, text(name, 4))
        blocks += request.blocks[0]
        world.plan()
    world.step(fails=lambda _: True)
    assert [block for copy in world.plan().stores for block in copy.blocks] == blocks


def test_a_store_that_failed_on_one_rank_of_two_is_not_visible() -> None:
    world = World(ranks=2)
    world.prefill("r", A)
    (copy,) = world.plan().stores
    world.run(copy, ranks=[0])
    world.run(copy, ranks=[1], why="broken")
    assert world.cached_blocks(A) == []
    world.drain()
    assert world.cached_blocks(A) == list(range(8))


def test_a_store_is_given_up_after_so_many_attempts() -> None:
    world = World()
    request = world.prefill("r", A)
    tries: list[Copy] = []

    def fails(copy: Copy) -> bool:
        tries.append(copy)
        return True

    for _ in range(ATTEMPTS_MAX + 3):
        world.step(fails=fails)
    assert len(tries) == ATTEMPTS_MAX
    assert world.manager.metrics.not_stored == {NotStored.COPY_FAILED: 8}
    assert not world.manager.busy
    world.finish(request)
    world.drain()
    assert world.cached_blocks(A) == list(range(8)), "the flush at the end is a new beginning"


def test_a_failed_store_is_taken_over_by_another_holder_of_the_same_bytes() -> None:
    world = World(device_blocks=16)
    first, second = world.add("r1", A[:12]), world.add("r2", A[:12])
    for request in (first, second):  # both computed the same, in blocks of their own
        world.place(request, 0, 0)
        world.manager.admit(request.id, 0)
    world.compute(first)
    world.compute(second)
    assert set(first.blocks[0]).isdisjoint(second.blocks[0])
    (copy,) = world.plan().stores
    assert len(copy.blocks) == 3, "one copy per key"
    world.run(copy, why="broken")
    gone = second if copy.blocks[0] in second.blocks[0] else first
    world.finish(gone)
    world.fill_device()
    world.drain()
    assert world.cached_blocks(A[:12]) == [0, 1, 2]


def test_a_failed_store_whose_bytes_are_gone_is_counted() -> None:
    world = World(device_blocks=8)
    world.finish(world.prefill("r", A))
    (copy,) = world.plan(idle=True).stores[:1]
    world.run(copy, why="broken")
    for pending in list(world.pending.values()):
        world.run(pending.copy, why="broken")
    world.fill_device()
    world.drain()
    assert world.cached_blocks(A) == []
    assert world.manager.metrics.not_stored[NotStored.EVICTED_FROM_DEVICE] == 8


def test_a_head_that_failed_once_does_not_cost_its_deferred_tail() -> None:
    world = World(pin_budget=4)
    world.finish(world.prefill("r", A))
    world.step(fails=lambda copy: copy.id == 1)
    world.drain()
    assert world.cached_blocks(A) == list(range(8))


@pytest.mark.usefixtures("small_transfers")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_parts_of_a_prefix_that_fail_in_any_order_are_all_tried_again(order: tuple[int, int]) -> None:
    world = World(pin_budget=32)
    world.finish(world.prefill("r", A))
    stores = world.plan().stores
    for index in order:
        world.run(stores[index], why="broken")
    world.drain()
    assert world.cached_blocks(A) == list(range(8))
    assert not world.manager.metrics.not_stored


def test_one_failure_in_a_shared_transfer_is_not_the_end_of_the_others() -> None:
    world = World()
    for name in "abc":
        world.finish(world.prefill(name, text(name, 8)))
    world.step(fails=lambda _: True)
    world.drain()
    assert all(world.cached_blocks(text(name, 8)) == [0, 1] for name in "abc")


# ---------------------------------------------------------------------- reset, reports


@pytest.mark.parametrize("when", ["planned", "in flight", "waiting"])
def test_a_reset_ends_stores_that_are(when: str) -> None:
    world = World(pin_budget=8 if when != "waiting" else 2)
    request = world.prefill("r", A)
    if when == "in flight":
        world.plan()
    world.finish(request)
    world.reset()
    world.drain()
    assert world.cached_blocks(A) == []
    gauges = world.manager.gauges()
    assert gauges.slots_free == gauges.slots
    assert world.manager.metrics.not_stored == {NotStored.RESET: 8}


def test_the_same_key_can_be_stored_anew_while_an_old_copy_of_it_ends() -> None:
    world = World(pin_budget=32)
    world.finish(world.prefill("r", A))
    (old,) = world.plan().stores
    world.reset()
    world.finish(world.prefill("s", A))
    (new,) = world.plan().stores
    assert set(old.slots).isdisjoint(new.slots)
    world.run(new)
    assert world.cached_blocks(A) == list(range(8))
    world.run(old)
    assert world.cached_blocks(A) == list(range(8))
    world.check()


def test_reports_about_unknown_stores_change_nothing() -> None:
    world = World(groups=(FullAttention(4), SlidingWindow(4, 9)))
    world.prefill("r", A)
    world.plan()
    world.report(Report(0, done=(77,), failed=((78, "what?"),)), Report(5, done=(1,)))
    assert world.manager.metrics.reports_unknown == 3
    assert world.cached_blocks(A) == []
    world.check()
