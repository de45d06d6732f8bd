"""The index: the best ratio of returns to time held, and what follows from observations."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvtide.core.eviction.forecast_index import BINS, ReturnIndex, gittins
from kvtide.core.eviction.forecast_visits import Visits

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
