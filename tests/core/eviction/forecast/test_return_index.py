"""The index: the best ratio of returns to time held, and what follows from observations."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtide.core.eviction.forecast.return_index import BINS, CHANCE_MAX, ReturnIndex, gittins
from kvtide.core.eviction.forecast.visits import Visits

chances = st.lists(st.floats(0, 0.5), min_size=1, max_size=12)


@given(chances)
def test_the_hull_finds_the_best_of_all_times_to_wait(given_chances: list[float]) -> None:
    widths = [float(2**index) for index in range(len(given_chances))]
    for begin, index in enumerate(gittins(given_chances, widths)):
        best, left, back, held = 0.0, 1.0, 0.0, 0.0
        for chance, width in zip(given_chances[begin:], widths[begin:], strict=True):
            staying = left * (1 - chance)
            back, held = back + left - staying, held + (left + staying) / 2 * width
            best, left = max(best, back / held), staying
        assert index == pytest.approx(best, rel=1e-6, abs=1e-12)


def test_before_anything_is_known_older_is_worth_less() -> None:
    index = ReturnIndex(1000, 3, special_kinds=1)
    values = [index.value(2, int(edge)) for edge in index.edges]
    assert values == sorted(values, reverse=True)


def test_ages_are_binned_over_all_that_matters() -> None:
    for slots in (1, 10, 1_000_000):
        index = ReturnIndex(slots, 1, special_kinds=0)
        assert len(index.edges) == BINS
        assert index.edges == sorted(set(index.edges))
        assert index.edges[-1] > 20 * slots


@pytest.mark.parametrize("slots", [1, 24, 48, 1000])
def test_each_age_has_the_value_of_the_bin_that_it_is_in(slots: int) -> None:
    index = ReturnIndex(slots, 1, special_kinds=0)
    assert index.edges[:2] == [0, max(1, slots / 16)]
    for age in range(int(index.edges[-1]) + 10):
        begin = max(edge for edge in index.edges if edge <= age)
        assert index.value(0, age) == index._index[0][index.edges.index(begin)]
        index.give_back(0, age, 1)
    assert index.value_at_birth(0) == index.value(0, 0) != index.value(0, int(index.edges[1]) + 1)
    assert index.value(0, 1000 * int(index.edges[-1])) == index.value(0, int(index.edges[-1]) + 1)
    last = int(index.edges[-1]) + 10
    ends = [*index.edges[1:], last]
    ages = [sum(begin <= age < end for age in range(last)) for begin, end in zip(index.edges, ends, strict=True)]
    assert index.returned == [ages]


def test_before_anything_is_known_each_bin_has_the_same_chance_for_its_width() -> None:
    index = ReturnIndex(1600, 2, special_kinds=0)
    widths = [end - begin for begin, end in zip(index.edges, index.edges[1:], strict=False)]
    widths.append(index.edges[-1] * (2**0.5 - 1))
    assert index._index == [pytest.approx(gittins([0.1 / (2**0.5 - 1)] + [0.1] * (BINS - 1), widths))] * 2


def observed(slots: int, back_after: int | None) -> ReturnIndex:
    """An index that has seen 300 visits of ten blocks, all of which come back after so long, or never."""
    index, visits = ReturnIndex(slots, 2, special_kinds=0), Visits(2000)
    now = 0
    for _ in range(300):
        now += slots // 8
        row = visits.open(now, 1, 0) % visits.size
        visits.cached[row] = 10
        if back_after is not None:
            for other in range(visits.next):
                if visits.cached[other] and now - visits.born[other] >= back_after:
                    index.expose(visits, now)
                    index.give_back(1, now - visits.born[other], visits.cached[other])
                    visits.cached[other] = 0
    index.expose(visits, now)
    index.refit()
    return index


def test_what_comes_back_after_a_while_is_worth_most_just_before() -> None:
    index = observed(800, back_after=1600)
    assert index.value(1, 1500) > index.value(1, 0)
    assert index.value(1, 1500) > 3 * index.value(1, 8000)


def test_what_never_comes_back_is_worth_next_to_nothing() -> None:
    never, often = observed(800, None), observed(800, 1600)
    assert never.value(1, 0) < often.value(1, 0) / 10


def test_old_observations_fade() -> None:
    index = observed(800, 1600)
    before = sum(index.exposed[1])
    index._memory_blocks = 1
    index.refit()
    assert sum(index.exposed[1]) == pytest.approx(before / 2)


SPECIAL, KINDS = 2, 5


def seen(seed: int) -> ReturnIndex:
    """An index with counts that were drawn."""
    draw = random.Random(seed)
    index = ReturnIndex(1600, KINDS, special_kinds=SPECIAL)
    index._visits = draw.choice((0, 3, 40))
    for kind in range(KINDS):
        left = draw.choice((0, 1, 30, 2000))
        for age_bin in range(BINS):
            index.exposed[kind][age_bin] = left
            index.returned[kind][age_bin] = back = draw.randint(0, int(left) // 3)
            left -= back + draw.randint(0, int(left) // 20)
            index.returned[kind][age_bin] += draw.choice((0, 0, 0, 5))  # came back before they were counted
    return index


def chances_as_described(index: ReturnIndex) -> list[list[float]]:
    """Return the chance to come back by kind and bin, computed cell by cell."""
    ordinary = range(SPECIAL, KINDS)
    a_visit = max(1.0, sum(index.exposed[kind][0] for kind in ordinary) / max(1.0, index._visits))
    shared: list[float] = []
    for age_bin in range(BINS):
        back = sum(index.returned[kind][age_bin] for kind in ordinary)
        there = max(back, sum(index.exposed[kind][age_bin] for kind in ordinary))
        shared.append((back + a_visit * min([0.1, *shared[-1:]])) / (there + a_visit))
    found: list[list[float]] = []
    for kind in range(KINDS):
        there_at = [max(row) for row in zip(index.exposed[kind], index.returned[kind], strict=True)]
        expected = sum(shared[age_bin] * there_at[age_bin] for age_bin in range(BINS))
        scale = (sum(index.returned[kind]) + a_visit) / (expected + a_visit)
        found.append([])
        for age_bin in range(BINS):
            back, there = index.returned[kind][age_bin], there_at[age_bin]
            chance = (back + 20 * a_visit * scale * shared[age_bin]) / (there + 20 * a_visit)
            found[-1].append(min(CHANCE_MAX, chance))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_values_follow_from_the_counts_as_described(seed: int) -> None:
    index = seen(seed)
    widths = list(index._widths)
    chances = chances_as_described(index)
    index._memory_blocks = 10**9
    index.refit()
    assert index._index == [pytest.approx(gittins(row, widths)) for row in chances]


def test_memory_is_halved_only_when_there_is_more_than_64_pools_of_ordinary_blocks() -> None:
    index = ReturnIndex(10, KINDS, special_kinds=SPECIAL)
    index.exposed[0][0], index.exposed[SPECIAL][0], index._visits = 5000.0, 640.0, 8.0
    index.refit()
    assert index.exposed[SPECIAL][0] == 640
    index.exposed[KINDS - 1][0] = 2.0
    index.returned[0][3] = 4.0
    index.refit()
    assert (index.exposed[0][0], index.exposed[SPECIAL][0], index.returned[0][3]) == (2500, 320, 2)
    assert (index.exposed[KINDS - 1][0], index._visits) == (1, 4)


def test_each_visit_is_counted_once_in_each_bin_it_has_reached() -> None:
    index, visits = ReturnIndex(1600, KINDS, special_kinds=SPECIAL), Visits(8)
    for kind in (SPECIAL, SPECIAL, 0, KINDS - 1):
        row = visits.open(1000, kind, 0)
        visits.cached[row], visits.gone[row] = 3, 4
    visits.cached[1] = visits.gone[1] = 0  # it came back, all of it
    for now, reached in ((999, 0), (1000, 1), (1050, 1), (1099, 1), (1100, 2), (1150, 3)):
        for _ in range(2):
            index.expose(visits, now)
        for kind in (0, SPECIAL, KINDS - 1):
            assert index.exposed[kind] == [7.0] * reached + [0.0] * (BINS - reached)
    assert index._visits == 2, "of ordinary kinds, with blocks"


def test_visits_that_the_ring_has_lost_are_not_counted() -> None:
    index, visits = ReturnIndex(1600, 1, special_kinds=0), Visits(4)
    for number in range(6):
        visits.cached[visits.open(number, 0, 0) % 4] = 10
    index.expose(visits, 50)
    assert index.exposed[0][0] == 40
