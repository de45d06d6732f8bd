"""One index that several engines use: who holds what, and what becomes of it when they go (I10, I11, I14)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtide.core import FullAttention, NotLoaded, NotStored, SlidingWindow
from kvtide.core.chain import Chain
from kvtide.core.groups import Group, Key
from kvtide.core.index.calls import (
    Cut,
    Found,
    LookUp,
    Offer,
    Ready,
    Release,
    Reserve,
    Reserved,
    Run,
    Settle,
    Taken,
    Unkept,
)
from kvtide.core.index.shared import SharedIndex
from kvtide.errors import ProtocolError
from tests.core.index.bench import SIZE, config_of
from tests.memory_node import local_index
from tests.support import keys_of, text

A, B, C = 11, 12, 13
FULL = (FullAttention(SIZE),)


def keys(name: str, blocks: int, group: int = 0) -> list[Key]:
    return keys_of(text(name, blocks * SIZE), SIZE, group)


class Node:
    """A shared index, and short ways to call it."""

    def __init__(self, slots: int = 8, groups: tuple[Group, ...] = FULL) -> None:
        self.local = local_index(config_of(groups, slots))
        self.shared = SharedIndex(self.local)
        for owner in (A, B, C):
            self.shared.attach(owner, slots)

    def look_up(self, owner: int, name: str, blocks: int) -> Found:
        reply = self.shared.handle(owner, LookUp(7, [keys(name, blocks)], 0, blocks * SIZE + 1))
        assert isinstance(reply, Found)
        assert reply.id == 7
        return reply

    def offer(self, name: str, blocks: int, first: int = 0) -> Offer:
        all_keys = keys(name, blocks)
        parent = all_keys[first - 1] if first else None
        return Offer(0, all_keys[first:], parent, (first + 1) * SIZE, [], needs_prefix=False, touch=False)

    def reserve(self, owner: int, *offers: Offer, room: int = 100) -> list[Taken]:
        reply = self.shared.handle(owner, Reserve(8, offers, room))
        assert isinstance(reply, Reserved)
        assert reply.id == 8
        return list(reply.taken)

    def write(self, owner: int, name: str, blocks: int) -> Run:
        (taken,) = self.reserve(owner, self.offer(name, blocks))
        (run,) = taken.runs
        return run

    def store(self, owner: int, name: str, blocks: int) -> Run:
        run = self.write(owner, name, blocks)
        self.say(owner, Settle([run.id], kept=True))
        return run

    def say(self, owner: int, call: Release | Settle | Cut | Ready) -> None:
        assert self.shared.handle(owner, call) is None

    @property
    def fill(self) -> tuple[int, int, int]:
        fill = self.local.fill()
        return fill.free, fill.cached, fill.pinned


@pytest.fixture
def node() -> Node:
    return Node()


def test_what_one_engine_stored_others_find(node: Node) -> None:
    run = node.store(A, "a", 3)
    found = node.look_up(B, "a", 3)
    assert (found.tokens, found.pieces[0].slots) == (3 * SIZE, run.slots)
    assert found.lease is not None


def test_what_nobody_has_is_not_leased(node: Node) -> None:
    found = node.look_up(A, "a", 2)
    assert (found.tokens, found.pieces, found.lease) == (0, (), None)
    assert found.missed == {NotLoaded.NOT_CACHED: 2 * SIZE}


def test_nothing_is_evicted_for_an_engine_that_cannot_use_all_slots_yet() -> None:
    node = Node(slots=4)
    run = node.store(A, "a", 4)
    node.say(B, Ready(2))
    (taken,) = node.reserve(B, node.offer("b", 3))
    assert (taken.runs, taken.left, taken.refused) == ([], [], {NotStored.HOST_FULL: 3})
    assert node.look_up(A, "a", 4).pieces[0].slots == run.slots


def test_an_engine_that_cannot_use_all_slots_yet_is_given_free_ones() -> None:
    node = Node(slots=4)
    node.store(A, "a", 2)
    node.say(B, Ready(3))
    (taken,) = node.reserve(B, node.offer("b", 3), room=1)
    assert (taken.runs[0].slots, taken.left, taken.refused) == ([2], [(1, 3)], {}), "the rest waits for its own room"


def test_leaving_out_keys_that_the_device_does_not_have_is_refused(node: Node) -> None:
    with pytest.raises(ProtocolError):
        node.shared.handle(A, LookUp(7, [keys("a", 3)], SIZE, 3 * SIZE + 1, [2]))
    assert node.shared.handle(A, LookUp(7, [keys("a", 3)], 2 * SIZE, 3 * SIZE + 1, [2])) is not None


def test_every_lease_and_every_run_has_a_name_of_its_own(node: Node) -> None:
    runs = [node.store(A, "a", 1).id, node.write(B, "b", 1).id]
    leases = [node.look_up(owner, "a", 1).lease for owner in (A, A, B)]
    assert len({*runs, *leases}) == 5


def test_a_lease_of_one_engine_outlives_that_of_another(node: Node) -> None:
    node.store(A, "a", 2)
    first, second = node.look_up(A, "a", 2), node.look_up(B, "a", 2)
    assert first.lease is not None
    assert second.lease is not None
    node.say(A, Release(first.lease, used=True))
    assert node.fill == (6, 2, 2)
    node.say(B, Release(second.lease, used=False))
    assert node.fill == (6, 2, 0)


def test_an_engine_that_returns_no_leases_cannot_keep_others_from_storing(node: Node) -> None:
    for name in "abcd":
        node.store(B, name, 2)
    leased = [node.look_up(A, name, 2) for name in "abcd"]
    assert [found.tokens for found in leased] == [2 * SIZE] * 3 + [0]
    assert (leased[3].lease, leased[3].pieces) == (None, ())
    assert leased[3].missed == {NotLoaded.LEASES_FULL: 2 * SIZE}
    assert node.shared.counted.not_loaded == {NotLoaded.LEASES_FULL: 2 * SIZE}
    node.store(B, "e", 2)
    for owner in (B, C):
        found = node.look_up(owner, "e", 2)
        assert found.tokens == 2 * SIZE, "each engine for itself"
    assert node.look_up(A, "e", 2).tokens == 0
    node.say(A, Release(leased[0].lease or 0, used=False))
    assert node.look_up(A, "e", 2).tokens == 2 * SIZE, "what was returned counts no more"


def test_an_engine_that_returns_no_leases_does_not_fill_the_nodes_memory(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtide.core.index.owner.LEASES_MAX", 5)
    node.store(A, "a", 2)
    leased = [node.look_up(A, "a", 2) for _ in range(7)]
    assert [found.tokens for found in leased] == [2 * SIZE] * 5 + [0] * 2
    assert leased[6].missed == {NotLoaded.LEASES_FULL: 2 * SIZE}
    node.say(A, Release(leased[0].lease or 0, used=False))
    assert node.look_up(A, "a", 2).tokens == 2 * SIZE


def test_what_an_engine_has_leased_is_not_counted_again_for_each_look_up(node: Node) -> None:
    for name in "abcd":
        node.store(B, name, 2)
    holder = node.shared._owners[A]
    leases = [node.look_up(A, name, 2).lease for name in "abc"]
    assert node.look_up(A, "d", 2).tokens == 0
    counted = holder._leased
    assert [node.look_up(A, name, 2).tokens for name in "dad"] == [0, 2 * SIZE, 0]
    assert holder._leased is counted
    node.say(A, Release(leases[1] or 0, used=False))
    assert [node.look_up(A, name, 2).tokens for name in "db"] == [2 * SIZE, 0]


def test_a_prefix_that_many_requests_of_an_engine_share_is_leased_as_often_as_they_ask(node: Node) -> None:
    node.store(B, "a", 5)
    assert all(node.look_up(A, "a", 5).tokens == 5 * SIZE for _ in range(20))


def test_the_first_lease_of_an_engine_may_be_for_more_than_its_share(node: Node) -> None:
    node.store(B, "a", 7)
    node.store(B, "b", 1)
    first = node.look_up(A, "a", 7)
    assert first.tokens == 7 * SIZE
    assert node.look_up(A, "b", 1).tokens == 0
    again = node.look_up(A, "a", 7)
    assert again.tokens == 7 * SIZE, "it keeps that anyway"
    for found in (first, again):
        node.say(A, Release(found.lease or 0, used=False))
    assert node.look_up(A, "b", 1).tokens == SIZE


def test_an_engine_cannot_return_or_settle_what_another_one_holds(node: Node) -> None:
    node.store(A, "a", 1)
    lease, run = node.look_up(A, "a", 1).lease, node.write(A, "b", 2)
    assert lease is not None
    node.say(B, Release(lease, used=True))
    node.say(B, Settle([run.id], kept=True))
    node.say(B, Cut(run.id, 1))
    assert node.shared.calls_unknown == 3
    assert node.fill == (5, 1, 1)
    assert node.look_up(B, "b", 2).tokens == 0


def test_what_is_said_twice_is_counted_and_harmless(node: Node) -> None:
    run = node.store(A, "a", 2)
    lease = node.look_up(A, "a", 2).lease
    assert lease is not None
    for call in (Settle([run.id], kept=False), Settle([run.id], kept=True), Cut(run.id, 1)):
        node.say(A, call)
    node.say(A, Release(lease, used=True))
    assert node.shared.calls_unknown == 3
    node.say(A, Release(lease, used=True))
    assert node.shared.calls_unknown == 4
    assert node.fill == (6, 2, 0)


def test_one_call_can_settle_several_runs_and_none_twice(node: Node) -> None:
    runs = [node.write(A, name, 1).id for name in "ab"]
    node.say(A, Settle([*runs, runs[0]], kept=True))
    assert node.fill == (6, 2, 0)
    assert node.shared.calls_unknown == 1


# ---------------------------------------------------------------------- engines that go


def test_what_a_closed_engine_reads_and_writes_is_in_quarantine_until_it_has_ended(node: Node) -> None:
    node.store(B, "b", 2)
    node.look_up(A, "b", 2)
    node.write(A, "a", 3)
    assert node.shared.quarantined_slots == 0
    node.shared.closed(A)
    assert node.shared.quarantined_slots == 5
    assert node.fill == (3, 2, 2)
    (taken,) = node.reserve(B, node.offer("c", 8))
    assert sum(len(run.slots) for run in taken.runs) == 3, "nobody else gets these slots (I10, I11)"
    assert taken.refused == {NotStored.HOST_FULL: 5}
    node.shared.ended(A)
    assert node.shared.quarantined_slots == 0
    assert node.fill == (3, 2, 0)


def test_an_engine_that_ends_without_being_closed_leaves_nothing(node: Node) -> None:
    node.store(A, "a", 2)
    node.look_up(A, "a", 2)
    node.write(A, "b", 2)
    node.shared.ended(A)
    assert node.fill == (6, 2, 0)
    assert node.look_up(B, "a", 2).tokens == 2 * SIZE, "what was committed stays"


@pytest.mark.parametrize("end", ["closed", "ended"])
def test_calls_of_a_life_that_is_over_are_counted_and_harmless(node: Node, end: str) -> None:
    run = node.write(A, "a", 2)
    if end == "closed":
        node.shared.closed(A)
    else:
        node.shared.ended(A)
    before = node.fill
    for call in (
        Settle([run.id], kept=True),
        Release(run.id, used=True),
        Ready(4),
        LookUp(1, [keys("a", 2)], 0, 9),
        Reserve(2, [node.offer("b", 2)], 5),
    ):
        assert node.shared.handle(A, call) is None
    assert node.shared.calls_unknown == 5
    assert node.fill == before
    assert node.look_up(B, "a", 2).tokens == 0


# ---------------------------------------------------------------------- a writer that does not write (I14)


def unkept(name: str, block: int, blocks: int = 1) -> Unkept:
    """Return what is said of blocks that were not written."""
    before, those = keys(name, block), keys(name, block + blocks)[-blocks:]
    return Unkept(Chain(0, those, before[-1] if before else None, (block + 1) * SIZE, [1] * blocks))


def test_what_a_dead_writer_has_not_written_goes_to_an_engine_that_has_it(node: Node) -> None:
    node.write(A, "a", 2)
    (taken,) = node.reserve(B, node.offer("a", 3))
    assert [run.first for run in taken.runs] == [2], "the rest is being written"
    assert taken.reached == 3
    node.shared.closed(A)
    assert node.shared.take_notices() == []
    node.shared.ended(A)
    assert node.shared.take_notices() == [(B, unkept("a", 0, 2))], "in one message"
    assert node.shared.take_notices() == []
    (again,) = node.reserve(B, node.offer("a", 2))
    assert [(run.first, len(run.slots)) for run in again.runs] == [(0, 2)]


def test_everybody_is_told_of_what_they_have_and_of_nothing_else(node: Node) -> None:
    run = node.write(A, "a", 4)
    node.reserve(B, node.offer("a", 3))
    node.reserve(C, node.offer("a", 4, first=1))
    node.say(A, Settle([run.id], kept=False))
    told = [(B, unkept("a", 0)), (B, unkept("a", 1, 2)), (C, unkept("a", 1, 2)), (C, unkept("a", 3))]
    assert node.shared.take_notices() == told


@pytest.mark.parametrize("kept", [True, False])
def test_whoever_has_the_bytes_is_told_only_if_the_writer_gives_up(node: Node, kept: bool) -> None:
    run = node.write(A, "a", 1)
    node.reserve(B, node.offer("a", 1))
    node.reserve(C, node.offer("a", 1))
    node.reserve(C, node.offer("a", 1))
    node.say(A, Settle([run.id], kept=kept))
    assert node.shared.take_notices() == ([] if kept else [(B, unkept("a", 0)), (C, unkept("a", 0))])
    other = node.write(A, "x", 1)
    node.say(A, Settle([other.id], kept=False))
    assert node.shared.take_notices() == [], "of a slot's earlier content nobody is told again"


def test_whoever_has_what_is_committed_relies_on_nobody() -> None:
    node = Node(slots=1)
    node.store(A, "a", 1)
    node.reserve(B, node.offer("a", 1))
    other = node.write(C, "c", 1)
    node.say(C, Settle([other.id], kept=False))
    assert node.shared.take_notices() == [], "that was another block in the same slot"


def test_the_writer_itself_is_not_told(node: Node) -> None:
    run = node.write(A, "a", 1)
    node.reserve(A, node.offer("a", 1))
    node.say(A, Settle([run.id], kept=False))
    assert node.shared.take_notices() == []


def test_what_is_cut_off_a_run_goes_to_an_engine_that_has_it(node: Node) -> None:
    run = node.write(A, "a", 3)
    node.reserve(B, node.offer("a", 3))
    node.say(A, Cut(run.id, 1))
    assert node.shared.take_notices() == [(B, unkept("a", 1, 2))]
    node.say(A, Settle([run.id], kept=True))
    assert node.shared.take_notices() == []
    assert node.look_up(B, "a", 3).tokens == SIZE
    assert node.fill == (7, 1, 1)


@pytest.mark.parametrize("end", ["closed", "ended"])
def test_engines_that_have_gone_are_not_told(node: Node, end: str) -> None:
    run = node.write(A, "a", 1)
    node.reserve(B, node.offer("a", 1))
    node.reserve(C, node.offer("a", 1))
    getattr(node.shared, end)(B)
    node.say(A, Settle([run.id], kept=False))
    assert node.shared.take_notices() == [(C, unkept("a", 0))]


def test_an_engine_that_goes_after_it_was_named_is_not_told(node: Node) -> None:
    run = node.write(A, "a", 1)
    node.reserve(B, node.offer("a", 1))
    node.say(A, Settle([run.id], kept=False))
    node.shared.closed(B)
    assert node.shared.take_notices() == []


# ---------------------------------------------------------------------- engines that have pinned a part


def test_an_engine_gets_only_slots_that_it_can_use(node: Node) -> None:
    node.say(A, Ready(2))
    (taken,) = node.reserve(A, node.offer("a", 2))
    assert [run.slots for run in taken.runs] == [[0, 1]]
    (refused,) = node.reserve(A, node.offer("b", 2))
    assert (refused.runs, refused.reached, refused.refused) == ([], 0, {NotStored.HOST_FULL: 2})
    assert node.fill == (6, 0, 0), "they are given back"
    assert node.write(B, "b", 2).slots
    node.say(A, Ready(8))
    assert node.write(A, "c", 4).slots


def test_slots_of_which_an_engine_can_use_only_some_are_all_given_back(node: Node) -> None:
    node.store(B, "a", 3)
    middle = replace(node.offer("b", 2), keys=keys("b", 2)[1:], parent=keys("b", 1)[0], end_tokens=2 * SIZE)
    (taken,) = node.reserve(B, middle)
    node.say(B, Settle([taken.runs[0].id], kept=True))
    node.say(A, Ready(5))
    (taken,) = node.reserve(A, node.offer("b", 4))
    assert [(run.first, run.slots) for run in taken.runs] == [(0, [4])]
    assert (taken.refused, taken.reached) == ({NotStored.HOST_FULL: 2}, 2)
    node.say(A, Settle([taken.runs[0].id], kept=False))
    node.say(A, Ready(4))
    (taken,) = node.reserve(A, node.offer("b", 4))
    assert (taken.runs, taken.refused, taken.reached) == ([], {NotStored.HOST_FULL: 3}, 0)
    node.say(A, Ready(6))
    (taken,) = node.reserve(A, node.offer("c", 3))
    assert (taken.runs, taken.refused) == ([], {NotStored.HOST_FULL: 3}), "the first two of three could be used"
    assert node.fill == (4, 4, 0)


def test_what_an_engine_cannot_read_yet_is_a_miss_for_it(node: Node) -> None:
    node.store(B, "a", 3)
    node.say(A, Ready(2))
    found = node.look_up(A, "a", 3)
    assert (found.tokens, found.lease) == (0, None)
    assert found.missed == {NotLoaded.NOT_CACHED: 3 * SIZE + 1}
    assert node.fill == (5, 3, 0)
    assert node.look_up(A, "a", 2).tokens == 2 * SIZE
    reply = node.shared.handle(A, LookUp(1, [keys("a", 3)], SIZE, 3 * SIZE + 1))
    assert isinstance(reply, Found)
    assert reply.missed == {NotLoaded.NOT_CACHED: 2 * SIZE + 1}
    node.say(A, Ready(3))
    assert node.look_up(A, "a", 3).tokens == 3 * SIZE


def test_an_engine_that_has_said_nothing_gets_nothing(node: Node) -> None:
    node.store(B, "a", 1)
    node.shared.attach(99)
    assert node.look_up(99, "a", 1).tokens == 0
    (taken,) = node.reserve(99, node.offer("b", 1))
    assert not taken.runs


# ---------------------------------------------------------------------- calls that cannot be


GOOD = Offer(0, keys("a", 2), None, SIZE, [], needs_prefix=False, touch=False)


@pytest.mark.parametrize(
    "call",
    [
        LookUp(1, [], 0, 9),
        LookUp(1, [keys("a", 2), keys("a", 2)], 0, 9),
        LookUp(1, [keys("a", 2)], -1, 9),
        LookUp(1, [keys("a", 2)], 9, 9),
        Reserve(1, [GOOD, replace(GOOD, group=1)], 5),
        Reserve(1, [GOOD, replace(GOOD, group=-1)], 5),
        Reserve(1, [GOOD, replace(GOOD, end_tokens=0)], 5),
        Reserve(1, [GOOD, replace(GOOD, end_tokens=-SIZE)], 5),
        Reserve(1, [GOOD, replace(GOOD, end_tokens=SIZE + 1)], 5),
        Reserve(1, [GOOD, replace(GOOD, gone=[2])], 5),
        Reserve(1, [GOOD, replace(GOOD, gone=[-1])], 5),
        Reserve(1, [GOOD, replace(GOOD, keys=[b"x", b"y", b"x"])], 5),
        Reserve(1, [replace(GOOD, keys=[b"x", b"y", b"x"], touch=True)], 5),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(node: Node, call: LookUp | Reserve) -> None:
    with pytest.raises(ProtocolError, match="cannot be"):
        node.shared.handle(A, call)
    assert node.fill == (8, 0, 0)
    assert node.store(A, "a", 2).slots
    assert node.look_up(B, "a", 2).tokens == 2 * SIZE


def test_blocks_may_have_one_token() -> None:
    node = Node(groups=(FullAttention(1),))
    (taken,) = node.reserve(A, Offer(0, [b"k"], None, 1, [], needs_prefix=False, touch=False))
    assert len(taken.runs) == 1


def test_a_number_of_tokens_that_nobody_has_does_not_hold_the_node_up() -> None:
    node = Node(groups=(SlidingWindow(SIZE, SIZE),))
    node.store(A, "a", 2)
    for device_tokens in (0, 10**17):
        reply = node.shared.handle(A, LookUp(1, [keys("a", 2)], device_tokens, 10**18))
        assert isinstance(reply, Found)
        assert reply.tokens == (0 if device_tokens else 2 * SIZE)


@pytest.mark.parametrize("keep_blocks", [-1, 0, 2, 3])
def test_a_cut_that_cuts_nothing_or_all_is_counted_and_harmless(node: Node, keep_blocks: int) -> None:
    run = node.write(A, "a", 2)
    node.say(A, Cut(run.id, keep_blocks))
    assert node.shared.calls_unknown == 1
    node.say(A, Settle([run.id], kept=True))
    assert node.fill == (6, 2, 0)
