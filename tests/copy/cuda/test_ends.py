"""When a load will be over: what the ones before took, and who has not begun yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from kvtide.copy.base import Direction
from kvtide.copy.cuda import jobs as jobs_module
from kvtide.copy.cuda.ends import Ends
from kvtide.copy.cuda.jobs import Jobs
from kvtide.copy.cuda.lane_parts import Issued
from kvtide.copy.cuda.packed_sizes import Sizes
from kvtide.core.messages import Copy


def test_transfers_come_one_after_the_other() -> None:
    ends = Ends(block_s=0.1)
    assert ends.issued(10, since_s=5.0) == pytest.approx(6.0)
    assert ends.issued(5, since_s=5.1) == pytest.approx(6.5)
    assert ends.issued(5, since_s=9.0) == pytest.approx(9.5)


def test_what_waits_and_what_is_behind_it_is_over_later() -> None:
    ends = Ends(block_s=0.1)
    ends.issued(10, since_s=0.0)
    assert ends.waits(10, free_s=3.0) == pytest.approx(4.0)
    assert ends.issued(1, since_s=0.5) == pytest.approx(4.1)


def test_the_last_transfers_say_what_a_block_takes_and_large_ones_say_more() -> None:
    ends = Ends(block_s=0.1)
    ends.ended(1000, 10.0)
    assert ends.issued(100, since_s=0.0) == pytest.approx(1.0)
    ends.ended(1, 5.0)
    assert ends.issued(100, since_s=10.0) == pytest.approx(10 + 100 * 10 / 501)
    for _ in range(20):
        ends.ended(1000, 20.0)
    assert ends.issued(100, since_s=20.0) == pytest.approx(22.0, abs=0.001)


class Point:
    """An event that is reached when somebody says so."""

    def __init__(self) -> None:
        self.reached = False
        self.broken = False

    def query(self) -> bool:
        if self.broken:
            raise OSError("gone")
        return self.reached

    def synchronize(self) -> None:
        """Nobody does."""

    def wait(self) -> None:
        """Nobody does."""

    def elapsed_time(self, _: object) -> float:
        return 1000.0


class Loads:
    """Loads of a hundred blocks, at a second each until some have ended, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(jobs_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.jobs = Jobs(Sizes(1, 1, None), 10, Ends(block_s=0.01))
        self.begins: list[Point] = []
        self.ends: list[Point] = []

    def issue(self) -> None:
        """Issue one more, numbered from 1."""
        begin, end = Point(), Point()
        self.begins.append(begin)
        self.ends.append(end)
        assert self.jobs.submit(Direction.LOAD, Copy(len(self.ends), tuple(range(100)), tuple(range(100))), None)
        job = self.jobs.next(Direction.LOAD)
        assert job is not None
        self.jobs.issued(job, Issued(begin, end, None, 0))

    def over_within(self, seconds: float) -> list[int]:
        return list(self.jobs.certain(seconds))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


def test_f31_a_load_is_told_of_when_it_is_over_soon_enough(loads: Loads) -> None:
    loads.issue()
    loads.begins[0].reached = True
    assert loads.over_within(math.inf) == [1]
    assert loads.over_within(0.9) == []
    loads.now_s = 0.2
    assert loads.over_within(0.9) == [1]


def test_f31_those_behind_it_are_not_told_of_with_it(loads: Loads) -> None:
    loads.issue()
    loads.issue()
    loads.begins[0].reached = True
    loads.now_s = 0.9
    assert loads.over_within(0.2) == [1]
    assert loads.over_within(math.inf) == [1, 2]


def test_f31_a_load_that_waits_for_compute_is_over_later_and_so_are_those_behind_it(loads: Loads) -> None:
    loads.issue()
    loads.issue()
    loads.now_s = 5.0
    assert loads.over_within(0.9) == []
    loads.begins[0].reached = True
    loads.now_s = 5.5
    assert loads.over_within(0.9) == [1]
    loads.now_s = 6.0
    loads.ends[0].reached = loads.begins[1].reached = True
    assert loads.over_within(0.9) == []
    assert loads.over_within(1.1) == [2]


def test_a_load_that_takes_longer_than_it_should_is_told_of(loads: Loads) -> None:
    loads.issue()
    loads.begins[0].reached = True
    loads.now_s = 100.0
    assert loads.over_within(0.0) == [1]


@pytest.mark.parametrize("break_it", [lambda loads: loads.begins[0], lambda loads: loads.ends[0]])
def test_a_device_that_does_not_say_who_has_begun_is_lost(loads: Loads, break_it: Callable[[Loads], Point]) -> None:
    loads.issue()
    break_it(loads).broken = True
    assert loads.over_within(1.0) == []
    assert loads.jobs.lost is not None
    assert loads.jobs.poll().failed
