"""A shared index makes room while nobody asks for anything, so that nobody has to wait for that when he stores."""

from __future__ import annotations

import pytest

from kvtide.core.index.calls import Release
from kvtide.core.index.shared import SharedIndex
from kvtide.core.index.spare import EVICTED_AT_ONCE, SPARE_SHARE, SPARE_SLOTS_MAX, SpareSlots
from tests.core.index.bench import config_of
from tests.core.index.deep import deep_config
from tests.core.index.test_shared import FULL, A, Node
from tests.memory_node import local_index


def resting(node: Node) -> int:
    """Let a node rest until there is nothing to do; return how often that took."""
    times = 1
    while node.shared.rest():
        times += 1
        assert times < 1000, "it does not come to an end"
    return times


def with_spare(spare: int, slots: int = 8) -> Node:
    node = Node(slots)
    node.shared = SharedIndex(node.local, spare_slots=spare)
    node.shared.attach(A, slots)
    return node


def store_all(node: Node, names: str, blocks: int = 2) -> None:
    for name in names:
        node.store(A, name, blocks)


def test_a_full_pool_has_spare_slots_after_a_rest_and_keeps_what_was_used_last() -> None:
    node = with_spare(3)
    store_all(node, "abcde")
    resting(node)
    assert node.fill == (3, 5, 0)
    assert [node.look_up(A, name, 2).tokens for name in "abcde"] == [0, 0, 4, 8, 8]


def test_a_pool_in_which_everything_fits_stays_full() -> None:
    node = with_spare(3)
    store_all(node, "abcd")
    assert not node.shared.rest()
    assert node.fill == (0, 8, 0)


def test_a_pool_that_was_cleared_has_room_for_all_again() -> None:
    node = with_spare(3)
    store_all(node, "abcde")
    node.shared.clear()
    store_all(node, "abcd")
    assert not node.shared.rest()
    assert node.fill == (0, 8, 0)


def test_a_pool_that_has_room_is_left_alone() -> None:
    node = with_spare(3)
    node.store(A, "a", 5)
    assert not node.shared.rest()
    assert node.fill == (3, 5, 0)


def test_what_is_leased_or_written_is_not_evicted() -> None:
    node = with_spare(8)
    node.store(A, "c", 1)
    node.store(A, "d", 1)
    node.store(A, "a", 3)
    node.look_up(A, "a", 3)
    node.write(A, "b", 4)  # d has had to leave, or c
    resting(node)
    assert node.fill == (1, 3, 3), "nothing but the other one could leave"


def test_where_nothing_can_leave_that_is_not_tried_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = with_spare(3)
    node.store(A, "a", 8)
    found = node.look_up(A, "a", 8)
    node.reserve(A, node.offer("b", 1))
    tries, evict = [], node.local.host._policy.evict

    def tried(count: int) -> list[int]:
        tries.append(count)
        return evict(count)

    monkeypatch.setattr(node.local.host._policy, "evict", tried)
    for _ in range(5):
        assert not node.shared.rest()
    assert len(tries) == 1
    assert found.lease is not None
    node.say(A, Release(found.lease, used=True))
    node.store(A, "b", 1)  # now something can leave, and has to
    resting(node)
    assert node.fill == (3, 5, 0)


def test_a_rest_is_short() -> None:
    node = with_spare(3 * EVICTED_AT_ONCE, 4 * EVICTED_AT_ONCE)
    store_all(node, "abcde", EVICTED_AT_ONCE)
    assert node.shared.rest()
    assert node.local.host.num_free == EVICTED_AT_ONCE
    assert resting(node) == 2
    assert node.local.host.num_free == 3 * EVICTED_AT_ONCE


@pytest.mark.parametrize(
    ("slots", "spare"),
    [(SPARE_SHARE - 1, 0), (SPARE_SHARE, 1), (10 * SPARE_SHARE, 10), (2000 * SPARE_SHARE, SPARE_SLOTS_MAX)],
)
def test_usually_one_slot_in_128_is_spare_and_never_more_than_1024(slots: int, spare: int) -> None:
    assert SpareSlots(local_index(config_of(FULL, slots)), None).slots == spare


def test_while_a_pool_grows_nothing_is_evicted() -> None:
    local = local_index(config_of(FULL, 8), slots_ready=4)
    node = with_spare(2)
    node.local, node.shared = local, SharedIndex(local, spare_slots=2)
    node.shared.attach(A, 4)
    node.store(A, "a", 4)
    node.store(A, "b", 4)
    assert not node.shared.rest()
    assert node.fill == (0, 4, 0)


def test_with_tiers_it_is_they_who_make_room() -> None:
    local = local_index(deep_config(FULL, 8))
    node = with_spare(2)
    node.local, node.shared = local, SharedIndex(local, spare_slots=2)
    node.shared.attach(A, 8)
    node.store(A, "a", 8)
    node.store(A, "b", 1)
    assert not node.shared.rest()
    assert node.local.host.num_free == 0
