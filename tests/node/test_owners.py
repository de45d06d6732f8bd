"""A life is over when none of its processes can write any more, not before, and exactly once (I10)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvtide.node.errors import Refused
from kvtide.node.owners import SCHEDULER, Changes, Member, Owner, Owners, State


def opened(owners: Owners, engine: str = "engine", *, is_watched: bool = True) -> Member:
    return owners.open(engine, "", pid=1, is_watched=is_watched)


def joined(owners: Owners, scheduler: Member, rank: int = 0, *, pid: int = 2, is_watched: bool = True) -> Member:
    return owners.join(scheduler.owner.number, rank=rank, pid=pid, is_watched=is_watched)


def seen(changes: Changes) -> tuple[list[Owner], list[Member], list[Owner]]:
    return changes.ending, changes.hang_up, changes.over


def test_the_end_of_a_scheduler_without_workers_is_the_end_of_all() -> None:
    owners = Owners()
    scheduler = opened(owners)
    assert seen(owners.closed(scheduler.number, 0.0)) == ([scheduler.owner], [], [scheduler.owner])
    assert list(owners) == []
    assert owners.members == 0


def test_a_worker_is_waited_for_after_its_scheduler_and_its_connection_have_ended() -> None:
    owners = Owners()
    scheduler = opened(owners)
    worker = joined(owners, scheduler)
    assert seen(owners.closed(scheduler.number, 0.0)) == ([scheduler.owner], [], [])
    assert seen(owners.closed(worker.number, 1.0)) == ([], [], [])
    assert seen(owners.passed(1e9)) == ([], [], [])
    assert seen(owners.exited(worker.number, 1e9)) == ([], [], [scheduler.owner])


def test_a_worker_that_comes_again_has_ended_what_it_copied_before() -> None:
    owners = Owners()
    schedulers = [opened(owners) for _ in range(2)]
    for scheduler, worker in zip(schedulers, ("this one", ""), strict=True):
        owners.join(scheduler.owner.number, rank=0, pid=2, is_watched=True, worker=worker)
        assert seen(owners.closed(scheduler.number, 0.0)) == ([scheduler.owner], [], [])
    assert seen(owners.came_again("another one")) == seen(owners.came_again("")) == ([], [], [])
    assert owners.came_again("this one").over == [schedulers[0].owner]
    assert seen(owners.came_again("this one")) == ([], [], [])


def test_a_worker_that_ends_takes_its_scheduler_with_it_but_not_other_workers() -> None:
    owners = Owners()
    scheduler = opened(owners)
    first, second = joined(owners, scheduler, 0), joined(owners, scheduler, 1)
    assert seen(owners.exited(first.number, 0.0)) == ([scheduler.owner], [scheduler], [])
    assert second.is_connected
    assert seen(owners.drained(second.number)) == ([], [second], [scheduler.owner])


def test_nothing_is_kept_of_workers_that_have_left_in_good_order() -> None:
    owners = Owners()
    scheduler = opened(owners)
    for rank in range(10):
        worker = joined(owners, scheduler, rank)
        worker.owner.far[rank] = "memory of NUMA node 0 and a GPU next to NUMA node 1"
        owners.drained(worker.number)
        assert seen(owners.closed(worker.number, 0.0)) == ([], [], [])
    assert (owners.members, scheduler.owner.far) == (1, {})


def test_an_exit_counts_before_the_connection_has_ended() -> None:
    owners = Owners()
    scheduler = opened(owners)
    worker = joined(owners, scheduler)
    owners.exited(worker.number, 0.0)
    assert list(owners) == []
    assert seen(owners.closed(worker.number, 0.0)) == ([], [], [])
    assert seen(owners.closed(scheduler.number, 0.0)) == ([], [], [])


@pytest.mark.parametrize("pid", [2, 0], ids=["in sight", "out of sight"])
def test_f28_a_worker_speaks_for_itself_only(pid: int) -> None:
    """Processes out of sight all have one number."""
    owners = Owners()
    scheduler = opened(owners)
    worker, other = joined(owners, scheduler, pid=pid), joined(owners, opened(owners), pid=pid)
    owners.closed(scheduler.number, 0.0)
    assert seen(owners.drained(other.number)) == ([], [], [])
    assert seen(owners.drained(worker.number)) == ([], [worker], [scheduler.owner])


def test_what_a_scheduler_says_of_its_copies_means_nothing() -> None:
    owners = Owners()
    scheduler = opened(owners)
    assert seen(owners.drained(scheduler.number)) == ([], [], [])
    assert not scheduler.is_quiet


def test_who_cannot_be_seen_has_its_time_from_the_end_of_its_connection_on() -> None:
    owners = Owners(grace_s=10.0)
    scheduler = opened(owners, is_watched=False)
    worker = joined(owners, scheduler, is_watched=False)
    owners.closed(scheduler.number, 0.0)
    assert seen(owners.passed(1e6)) == ([], [], [])
    owners.closed(worker.number, 1e6)
    assert seen(owners.passed(1e6 + 9.9)) == ([], [], [])
    assert seen(owners.passed(1e6 + 10.0)) == ([], [], [scheduler.owner])


def test_lives_of_one_engine_are_apart() -> None:
    owners = Owners()
    old = opened(owners, "same")
    worker = joined(owners, old)
    owners.closed(old.number, 0.0)
    new = opened(owners, "same")
    assert [owner.state for owner in owners] == [State.ENDING, State.OPEN]
    with pytest.raises(Refused, match="not connected any more"):
        joined(owners, old, rank=1)
    joined(owners, new)
    assert seen(owners.exited(worker.number, 0.0)) == ([], [], [old.owner])
    assert [owner.state for owner in owners] == [State.OPEN]


def test_a_worker_of_no_life_is_refused_for_now() -> None:
    with pytest.raises(Refused) as refused:
        Owners().join(17, rank=0, pid=1, is_watched=True)
    assert not refused.value.for_good


def test_who_was_refused_after_all_is_forgotten() -> None:
    owners = Owners()
    scheduler = opened(owners)
    owners.dismiss(joined(owners, scheduler))
    joined(owners, scheduler)
    other = opened(owners)
    owners.dismiss(other)
    assert list(owners) == [scheduler.owner]
    assert owners.members == 2


GRACE_S = 5.0


class WhateverHappens(RuleBasedStateMachine):
    """A model beside the owners: which members can still write, whatever the owners think."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = Owners(GRACE_S)
        self.members: list[Member] = []
        self.can_write: dict[int, Member] = {}
        self.silent_since_s: dict[int, float] = {}
        self.over: set[int] = set()
        self.now_s = 0.0

    def apply(self, changes: Changes) -> None:
        for owner in changes.over:
            assert owner.number not in self.over, "it was over already"
            self.over.add(owner.number)
            late = [self.can_write[number] for number in self.can_write if self.can_write[number].owner is owner]
            for member in late:
                silent_s = self.now_s - self.silent_since_s.get(member.number, self.now_s)
                assert not member.is_watched, "it may still write (I10)"
                assert silent_s >= GRACE_S, "it may still write (I10)"

    @rule(is_watched=st.booleans())
    def open(self, is_watched: bool) -> None:
        self.members.append(opened(self.owners, is_watched=is_watched))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), rank=st.integers(0, 2), is_watched=st.booleans())
    def join(self, data: st.DataObject, rank: int, is_watched: bool) -> None:
        owner = data.draw(st.sampled_from(self.members)).owner
        with contextlib.suppress(Refused):
            member = self.owners.join(owner.number, rank=rank, pid=2, is_watched=is_watched)
            self.members.append(member)
            self.can_write[member.number] = member

    @precondition(lambda self: self.members)
    @rule(data=st.data(), event=st.sampled_from(["closed", "exited", "drained"]))
    def end(self, data: st.DataObject, event: str) -> None:
        member = data.draw(st.sampled_from(self.members))
        if event == "drained":
            self.can_write.pop(member.number, None)
            self.apply(self.owners.drained(member.number))
            return
        self.silent_since_s.setdefault(member.number, self.now_s)
        if event == "closed":
            self.apply(self.owners.closed(member.number, self.now_s))
        elif member.is_watched:
            self.can_write.pop(member.number, None)
            self.apply(self.owners.exited(member.number, self.now_s))

    @rule(seconds=st.sampled_from([1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.apply(self.owners.passed(self.now_s))

    @invariant()
    def a_life_is_there_as_long_as_somebody_is_waited_for(self) -> None:
        for owner in self.owners:
            assert any(not member.is_quiet for member in owner.members.values())
            scheduler = next(member for member in owner.members.values() if member.role == SCHEDULER)
            assert scheduler.is_connected == (owner.state is State.OPEN)

    def teardown(self) -> None:
        for member in self.members:
            self.owners.exited(member.number, self.now_s)
        assert list(self.owners) == []
        assert self.owners.members == 0


TestWhateverHappens = WhateverHappens.TestCase
TestWhateverHappens.settings = settings(max_examples=60, stateful_step_count=25)
