"""The simulated copy engine keeps what `CopyEngine` promises, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvtide.copy import Direction
from kvtide.core.messages import Copy
from kvtide.sim.copies import CopyCrash, SimCopyEngine, StepFence
from kvtide.sim.faults import Faults
from kvtide.sim.host import HostSlots
from kvtide.sim.rank import Rank
from kvtide.sim.run import Run
from kvtide.sim.tokens import MOVING
from kvtide.sim.world import World

STAMP = 1 << 10


def rank_with(faults: Faults) -> tuple[Rank, Run]:
    run = Run.of(replace(World.draw(1), faults=faults, device_blocks=8, host_slots=8, slots_ready=8), log=False)
    rank = Rank(0, run, HostSlots(8))
    rank.device[1] = STAMP
    return rank, run


def store(engine: SimCopyEngine, id_: int = 1, *, after_step: int = 0) -> bool:
    copy = Copy(id_, (1,), (2,))
    engine.foresee(copy, is_store=True, speed=(1, 2))
    return engine.submit(Direction.STORE, copy, StepFence(after_step))


def test_a_store_takes_its_time_and_brings_what_was_on_the_device() -> None:
    rank, run = rank_with(Faults())
    assert store(rank.copies)
    run.clock.run(1)
    assert rank.host[2] == MOVING
    assert rank.copies.poll().done == ()
    run.clock.run(2)
    assert (rank.host[2], rank.copies.poll().done) == (STAMP, (1,))
    assert rank.copies.poll().done == ()


def test_a_copy_waits_for_the_compute_of_its_fence() -> None:
    rank, run = rank_with(Faults())
    store(rank.copies, after_step=1)
    run.clock.run(50)
    assert not rank.copies.running
    rank.copies.compute_ended(1)
    run.clock.run(1)
    assert list(rank.copies.running) == [1]


def test_who_waits_lets_time_pass_and_gives_up_at_the_deadline() -> None:
    rank, run = rank_with(Faults())
    store(rank.copies, 1)
    store(rank.copies, 2, after_step=1)
    assert rank.copies.wait((1,), 0.050)
    assert run.clock.now == 3
    assert not rank.copies.wait((2,), 0.050)
    assert run.clock.now == 53


def test_what_is_closed_fails_what_has_not_begun_and_ends_what_has() -> None:
    rank, run = rank_with(Faults())
    store(rank.copies, 1)
    run.clock.run(1)
    store(rank.copies, 2)
    assert not rank.copies.close(0.0)
    assert [id_ for id_, _ in rank.copies.poll().failed] == [2]
    assert rank.copies.close(1.0)
    assert rank.copies.poll().done == (1,)
    assert not store(rank.copies, 3)


@pytest.mark.parametrize("kind", ["failed_copy", "copy_crash"])
def test_a_copy_that_fails_has_spoiled_its_destination(kind: str) -> None:
    rank, _ = rank_with(Faults(**{kind: 256}))
    store(rank.copies)
    assert rank.copies.wait((1,), 1.0)
    assert [id_ for id_, _ in rank.copies.poll().failed] == [1]
    assert rank.host[2] == MOVING


def test_an_engine_that_has_no_room_refuses_and_one_that_is_out_of_order_raises() -> None:
    full, _ = rank_with(Faults(copy_refused=256))
    assert not store(full.copies)
    odd, _ = rank_with(Faults(copy_raises=256))
    with pytest.raises(CopyCrash):
        store(odd.copies)
    assert not full.copies.unfinished
    assert not odd.copies.unfinished
