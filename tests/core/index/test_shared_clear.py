"""An operator clears a shared index while engines use it, and what it has counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtide.core import NotLoaded, NotStored
from kvtide.core.config import BelowConfig
from kvtide.core.index.calls import Cut, LookUp, Release, Settle
from kvtide.core.index.shared import SharedIndex
from kvtide.core.messages import Clear
from tests.core.index.bench import SIZE, config_of
from tests.core.index.test_shared import FULL, A, B, C, Node, keys
from tests.memory_node import local_index


@pytest.fixture
def node() -> Node:
    return Node()


def test_nothing_that_was_cleared_is_found_again_and_its_room_is_free(node: Node) -> None:
    node.store(A, "a", 3)
    node.store(B, "b", 2)
    assert node.shared.clear() == 5
    assert node.fill == (8, 0, 0)
    assert node.look_up(A, "a", 3).missed == {NotLoaded.NOT_CACHED: 3 * SIZE}
    assert node.look_up(B, "b", 2).lease is None
    assert node.shared.clear() == 0
    node.store(A, "a", 3)
    assert node.look_up(B, "a", 3).tokens == 3 * SIZE, "it can be stored again"


@pytest.mark.parametrize("used", [True, False])
def test_a_lease_outlives_a_clear_and_its_slots_are_nobodys_until_it_is_returned(node: Node, used: bool) -> None:
    node.store(A, "a", 3)
    leased = node.look_up(B, "a", 3)
    assert leased.lease is not None
    assert node.shared.clear() == 3
    assert node.shared.counts()["leased"] == 3
    (taken,) = node.reserve(C, node.offer("c", 8))
    given = {slot for run in taken.runs for slot in run.slots}
    assert len(given) == 5
    assert not given & set(leased.pieces[0].slots), "what a lease covers does not change (I11)"
    assert node.look_up(A, "a", 3).lease is None
    node.say(B, Release(leased.lease, used=used))
    assert node.fill == (3, 0, 0)
    node.say(C, Settle([run.id for run in taken.runs], kept=True))
    assert node.fill == (3, 5, 0)
    node.store(A, "a", 8)
    assert node.look_up(B, "a", 8).tokens == 8 * SIZE, "the order in which blocks leave is sound"


def test_two_leases_of_one_block_are_both_returned_after_a_clear(node: Node) -> None:
    node.store(A, "a", 1)
    leases = [node.look_up(owner, "a", 1).lease for owner in (B, C)]
    node.shared.clear()
    for owner, lease, fill in zip((B, C), leases, ((7, 0, 1), (8, 0, 0)), strict=True):
        assert lease is not None
        node.say(owner, Release(lease, used=True))
        assert node.fill == fill


def test_what_was_cleared_counts_as_used_for_nobody(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.store(A, "a", 2)
    lease = node.look_up(B, "a", 2).lease
    assert lease is not None
    used: list[object] = []
    monkeypatch.setattr(node.local.host, "use", lambda *args: used.append(args))
    node.shared.clear()
    node.say(B, Release(lease, used=True))
    assert used == [], "what is in these slots next has not been used"


def test_what_is_below_host_memory_is_cleared_too() -> None:
    local = local_index(replace(config_of(FULL, 8), below=BelowConfig()))
    SharedIndex(local).clear()
    assert [type(errand) for errand in local.plan()] == [Clear]


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_being_written_at_a_clear_comes_to_nothing(node: Node, kept: bool) -> None:
    run = node.write(A, "a", 3)
    assert node.shared.clear() == 0
    assert node.fill == (5, 0, 0), "its writer may still write there (I10)"
    assert node.shared.counts()["writing"] == 3
    again = node.write(B, "a", 3)
    assert not set(again.slots) & set(run.slots)
    node.say(A, Settle([run.id], kept=kept))
    assert node.fill == (5, 0, 0)
    assert node.look_up(C, "a", 3).missed == {NotLoaded.STILL_STORING: 3 * SIZE}
    node.say(B, Settle([again.id], kept=True))
    assert node.fill == (5, 3, 0)
    assert node.shared.counted.stored_blocks == 3
    assert node.shared.calls_unknown == 0


def test_what_an_engine_writes_after_a_clear_is_kept(node: Node) -> None:
    before = node.write(A, "a", 2)
    node.shared.clear()
    after = node.write(A, "b", 2)
    node.say(A, Settle([before.id, after.id], kept=True))
    assert node.look_up(B, "a", 2).tokens == 0
    assert node.look_up(B, "b", 2).tokens == 2 * SIZE
    assert node.shared._owners[A].void == set()


def test_a_run_that_was_cleared_can_be_cut_and_its_parent_is_free(node: Node) -> None:
    node.store(A, "a", 1)
    (taken,) = node.reserve(A, node.offer("a", 4, first=1))
    (run,) = taken.runs
    node.shared.clear()
    assert node.fill == (4, 0, 1), "what it continues is kept for it"
    node.say(A, Cut(run.id, 1))
    assert node.fill == (6, 0, 1)
    node.say(A, Settle([run.id], kept=True))
    assert node.fill == (8, 0, 0)


def test_nobody_is_asked_to_store_what_was_cleared(node: Node) -> None:
    run = node.write(A, "a", 2)
    node.reserve(B, node.offer("a", 2))
    node.shared.clear()
    node.say(A, Settle([run.id], kept=True))
    assert node.shared.take_notices() == []


def test_an_engine_that_ends_after_a_clear_leaves_nothing(node: Node) -> None:
    node.store(A, "a", 2)
    node.look_up(B, "a", 2)
    node.write(B, "b", 3)
    node.shared.clear()
    node.shared.closed(B)
    assert node.shared.quarantined_slots == 5
    assert node.fill[0] == 3
    node.shared.ended(B)
    assert node.fill == (8, 0, 0)


# ---------------------------------------------------------------------- counts


def test_what_was_asked_and_found_is_counted(node: Node) -> None:
    node.store(A, "a", 3)
    node.look_up(B, "a", 4)
    node.shared.handle(B, LookUp(7, [keys("a", 3)], SIZE, 3 * SIZE + 1))
    node.look_up(B, "x", 2)
    node.reserve(C, node.offer("c", 8))
    node.shared.clear()
    counted = node.shared.counted
    assert (counted.lookups, counted.stored_blocks, counted.clears) == (3, 3, 1)
    assert counted.asked_tokens == (4 * SIZE + 1) + (2 * SIZE + 1) + (2 * SIZE + 1)
    assert counted.found_tokens == 3 * SIZE + 2 * SIZE
    assert counted.not_loaded == {NotLoaded.NOT_CACHED: SIZE + 2 * SIZE}
    assert counted.not_stored == {NotStored.HOST_FULL: 3}
    assert counted.plain() == {
        "lookups": 3,
        "asked_tokens": 8 * SIZE + 3,
        "found_tokens": 5 * SIZE,
        "stored_blocks": 3,
        "clears": 1,
        "not_loaded": {**dict.fromkeys([why.value for why in NotLoaded], 0), "not_cached": 3 * SIZE},
        "not_stored": {**dict.fromkeys([why.value for why in NotStored], 0), "host_full": 3},
    }


def test_what_an_engine_holds_is_told(node: Node) -> None:
    node.store(A, "a", 2)
    node.look_up(B, "a", 2)
    node.look_up(B, "a", 1)
    node.write(B, "b", 4)
    assert node.shared.held(A) == {"leased": 0, "writing": 0}
    assert node.shared.held(B) == {"leased": 3, "writing": 4}
