"""Steady state: what a size hits in the long run, from a recording that is short."""

from __future__ import annotations

from random import Random

import pytest

from kvtide.traces.lru_curve import LruCurve
from kvtide.traces.reuse_times import Visit, reuse_times
from kvtide.traces.steady_state import SteadyState, steady_state
from kvtide.traces.workloads import Workload


def of(visits: list[Visit]) -> SteadyState:
    return steady_state(reuse_times(visits))


def popular(requests: int, seed: int = 1, blocks: int = 300) -> list[Visit]:
    """Blocks that are asked for at random, each with the same chance, once a second: LRU hits size / blocks."""
    rng = Random(seed)
    return [Visit(float(time_s), (rng.randrange(blocks),)) for time_s in range(requests)]


def test_what_the_end_of_the_recording_cut_off_does_not_count_as_never_used_again() -> None:
    visits = popular(600)  # each block is used twice on average: most of the last uses are cut off
    seen = sum(value in {earlier.hashes[0] for earlier in visits[:at]} for at, (_, (value,)) in enumerate(visits))
    curve = LruCurve()
    for visit in visits:
        curve.add(visit.hashes)
    assert curve.hits(300) == seen
    assert seen / len(visits) < 0.6  # what the recording shows: a cold start
    assert of(visits).hit_share(150) == pytest.approx(0.5, abs=0.06)  # what is true in the long run


def test_a_size_keeps_blocks_as_long_as_it_takes_to_fill_it() -> None:
    steady = of([Visit(float(number), (number,)) for number in range(1000)])
    assert steady.hit_shares[-1] == 0
    assert steady.age_s(100) == pytest.approx(100, rel=0.06)


@pytest.mark.parametrize("slots", [400, 1500, 4000])
def test_a_short_recording_tells_what_lru_hits_in_a_long_one(slots: int) -> None:
    def visits(requests: int) -> list[Visit]:
        made = Workload("documents", requests, seed=3)
        return [Visit(one.time_s, one.hashes[: one.prompt_tokens // 512]) for one in made]

    long = visits(6000)  # its second half: the caches are warm
    curve = LruCurve()
    for visit in long[:3000]:
        curve.add(visit.hashes)
    warm = curve.hits(slots)
    for visit in long[3000:]:
        curve.add(visit.hashes)
    truth = (curve.hits(slots) - warm) / sum(len(visit.hashes) for visit in long[3000:])
    assert of(visits(2000)).hit_share(slots) == pytest.approx(truth, abs=0.04)


def test_that_all_came_back_after_the_same_time_does_not_mean_that_more_will_come_later() -> None:
    visits = [Visit(float(now_s), (now_s % 100, 1000 + now_s)) for now_s in range(500)]
    steady = of(visits)  # one block comes back after 100 s, and one never
    assert steady.seen_s == pytest.approx(350, rel=0.06)
    assert steady.hit_share(1000) == pytest.approx(0.5, abs=0.01)
    assert steady.hit_shares[-1] == pytest.approx(0.5, abs=0.01)  # two months, of which 6 minutes were seen


def test_hits_and_room_only_grow_with_age() -> None:
    steady = of(popular(500))
    for row in (steady.ages_s, steady.hit_shares, steady.blocks):
        assert row == sorted(row)
    assert steady.seen_s == pytest.approx(0.7 * 499, rel=0.06)
    assert 0 <= steady.hit_shares[-1] <= 1


def test_a_recording_of_one_moment_tells_nothing_and_breaks_nothing() -> None:
    steady = of([Visit(5.0, (1, 2)), Visit(5.0, (1, 2))])
    assert steady.uses_per_s == 0
    assert steady.hit_share(0) <= 1
