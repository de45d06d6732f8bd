"""Admission: what is asked for twice comes in."""

from __future__ import annotations

import pytest

from kvtide.core import FullAttention, NotStored, SlidingWindow
from kvtide.core.storing.eager import EagerPlanner
from kvtide.core.storing.lazy import LazyPlanner
from kvtide.core.storing.second_use import REMEMBERED_POOLS, SecondUse, Selection
from kvtide.errors import ConfigError
from tests.support import World, keys_of, text


def nothing(_: bytes) -> bool:
    """Say that the host has no key."""
    return False


def test_the_first_time_nothing_comes_in_and_the_second_time_all() -> None:
    admission = SecondUse(10)
    assert admission.count_storable([b"a", b"b"], nothing) == 0
    assert admission.count_storable([b"a", b"b", b"c"], nothing) == 2
    assert admission.count_storable([b"c"], nothing) == 1


def test_behind_what_is_kept_out_nothing_comes_in() -> None:
    admission = SecondUse(10)
    admission.count_storable([b"b"], nothing)
    assert admission.count_storable([b"a", b"b"], nothing) == 0


def test_what_is_on_the_host_already_has_been_admitted() -> None:
    admission = SecondUse(10)
    assert admission.count_storable([b"a", b"b"], known={b"a"}.__contains__) == 1
    assert admission.may_store(b"a")
    assert not admission.may_store(b"b")


def test_what_was_admitted_once_is_admitted_again() -> None:
    admission = SecondUse(10)
    assert [admission.count_storable([b"a"], nothing) for _ in range(3)] == [0, 1, 1]


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    admission = SecondUse(10)
    for number in range(200):
        admission.count_storable([b"%d" % number], nothing)
        assert len(admission) <= REMEMBERED_POOLS * 10 + 1
    assert admission.count_storable([b"0"], nothing) == 0
    assert admission.count_storable([b"199"], nothing) == 1
    assert admission.count_storable([b"%d" % (200 - REMEMBERED_POOLS * 10 // 2)], nothing) == 1


def test_what_came_in_is_still_known_when_a_generation_has_passed() -> None:
    admission = SecondUse(1)
    for _ in range(2):
        admission.count_storable([b"a"], nothing)
    admission.count_storable([b"b", b"c"], nothing)
    assert [admission.may_store(key) for key in (b"a", b"b", b"never seen")] == [True, False, False]
    admission.count_storable([b"d", b"e", b"f"], nothing)
    assert not admission.may_store(b"a"), "two generations have passed"


# ---------------------------------------------------------------------- in the core

A = text("a", 16)
MODES = ("eager", "lazy")


def second_use(**options: object) -> World:
    return World(**{"admission": "second-use", **options})  # type: ignore[arg-type]


def selection_of(world: World) -> Selection:
    planner = world.manager._planner
    assert isinstance(planner, EagerPlanner | LazyPlanner)
    return planner._selection


def push_out(world: World) -> None:
    """Let other prompts take the device's blocks."""
    for number in range(4):
        world.serve(f"other {number} {len(world.manager.metrics.not_stored)}", text(f"other {number}", 32))


def test_eager_mode_stores_what_a_second_request_computes_or_finds_on_the_device() -> None:
    world = second_use()
    world.serve("first", A)
    metrics = world.manager.metrics
    assert metrics.stored_blocks == 0
    assert metrics.not_stored == {NotStored.NOT_ADMITTED: 4}
    world.serve("second", A + text("b", 8))
    assert metrics.stored_blocks == 4
    assert metrics.not_stored == {NotStored.NOT_ADMITTED: 6}
    world.check()


def test_neither_the_end_of_a_request_nor_starting_again_is_a_second_use() -> None:
    world = second_use()
    request = world.add("first", A)
    for _ in range(3):
        world.admit(request)
        for upto in (5, 9, 16):
            world.compute(request, upto)
            world.step()
        world.preempt(request)
    world.admit(request)
    world.finish(request)
    world.drain()
    assert world.manager.metrics.stored_blocks == 0
    assert world.manager.metrics.not_stored.keys() == {NotStored.NOT_ADMITTED}


def test_two_that_run_at_a_time_are_two() -> None:
    world = second_use()
    requests = [world.add(name, A) for name in ("first", "second")]
    for request in requests:
        world.admit(request)
        world.compute(request)
    world.step()
    for request in requests:
        world.finish(request)
    world.drain()
    assert world.manager.metrics.stored_blocks == 4


@pytest.mark.parametrize("engine_tells", [True, False])
def test_lazy_mode_stores_what_was_asked_for_twice_before_it_is_evicted(engine_tells: bool) -> None:
    world = second_use(mode="lazy", device_blocks=16, step_tokens=8)
    if engine_tells:
        world.pool.on_evicted = world.manager.evicted
    world.serve("first", A)
    push_out(world)
    metrics = world.manager.metrics
    assert metrics.stored_blocks == 0
    assert metrics.not_stored[NotStored.NOT_ADMITTED] >= 4
    assert metrics.not_stored[NotStored.EVICTED_FROM_DEVICE] == 0
    world.serve("second", A)
    push_out(world)
    assert all(world.manager.is_cached(0, key) for key in keys_of(A, 4))


@pytest.mark.parametrize("mode", MODES)
def test_what_was_admitted_is_loaded_back(mode: str) -> None:
    world = second_use(mode=mode, device_blocks=16, step_tokens=8)
    for name in ("first", "second"):
        world.serve(name, A)
    push_out(world)
    world.fill_device()
    third = world.add("third", A)
    assert world.match(third).tokens == 12


def test_windows_that_others_filled_are_not_in_question() -> None:
    """A request that resumes behind a window has nothing before it: what it computes is decided by itself."""
    world = second_use(groups=(FullAttention(4), SlidingWindow(4, 5)))
    for name in ("first", "second", "third"):
        world.serve(name, A + text("b", 8))
    world.fill_device()
    for name in ("fourth", "fifth"):
        world.serve(name, A + text("b", 8) + text("c", 8))
    world.fill_device()
    assert world.match(world.add("sixth", A + text("b", 8) + text("c", 9))).tokens == 32
    world.check()


def test_each_block_of_a_request_is_asked_about_once() -> None:
    world = second_use(groups=(FullAttention(4), SlidingWindow(4, 5)))
    keys = world.add("r", A).keys
    selection, request = selection_of(world), world.manager._requests["r"]
    assert selection._second_use is not None
    assert [selection.count_storable(request, 0, full) for full in (4, 2, 4)] == [0, 0, 0]
    assert not any(selection.may_store(0, key) for key in keys[0])
    request.considered[1] = 3  # the engine left three blocks out: others have computed them
    assert selection.count_storable(request, 1, 4) == 3
    assert len(selection._second_use[1]) == 1


def test_behind_a_block_that_is_kept_out_nothing_is_stored() -> None:
    world = second_use()
    request = world.add("r", A)
    selection, core_request = selection_of(world), world.manager._requests["r"]
    assert selection._second_use is not None
    selection._second_use[0].count_storable(request.keys[0][2:], nothing)  # the head was forgotten, the tail was not
    assert [selection.count_storable(core_request, 0, full) for full in (1, 2, 3, 4)] == [0, 0, 0, 0]


@pytest.mark.parametrize("mode", MODES)
def test_what_was_not_computed_was_not_used(mode: str) -> None:
    world = second_use(mode=mode)
    for name, computed in (("first", 5), ("second", 16)):
        request = world.prefill(name, A, computed)
        world.step()
        world.finish(request)
        world.fill_device()
    assert [selection_of(world).may_store(0, key) for key in keys_of(A, 4)] == [True, False, False, False]


def test_the_groups_share_what_is_remembered() -> None:
    world = second_use(groups=(FullAttention(4), FullAttention(4)), host_blocks=8, device_blocks=16)
    for number in range(20):
        world.serve(str(number), text(str(number), 16))
    share = (8 + 16) // 2
    for remembered in selection_of(world)._second_use or ():
        assert REMEMBERED_POOLS * share // 2 <= len(remembered) <= REMEMBERED_POOLS * share + 4, "of 80 blocks"


def test_f22_an_unknown_admission_is_refused() -> None:
    with pytest.raises(ConfigError, match="admission='sometimes': expected"):
        second_use(admission="sometimes")
    assert second_use().config.admission == "second-use"
    assert World().config.admission == "all"
