"""Forecast: what it remembers, and who leaves, is what is found by looking at everything, whatever the traffic."""

from __future__ import annotations

import pytest

from kvtide.core.eviction.forecast import holders
from kvtide.core.eviction.forecast.kinds import LAST_BLOCK, LAST_BLOCK_LATER
from tests.contracts.eviction_contract import clear
from tests.core.eviction.forecast.plain import Books, Visit
from tests.core.eviction.forecast.traffic import Traffic


@pytest.mark.parametrize(("slots", "seed"), [(24, 1), (24, 2), (48, 3), (48, 4), (100, 5), (300, 6)])
def test_what_is_remembered_is_what_plain_books_say(slots: int, seed: int) -> None:
    play_and_check(Traffic(Books(slots), seed))


@pytest.mark.parametrize(("slots", "seed"), [(8, 5), (12, 6), (24, 7), (48, 8), (100, 9)])
def test_what_the_ring_of_visits_comes_round_to_is_kept_as_long_as_it_holds_blocks(
    slots: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "VISITS_MORE", 4)
    books = Books(slots)
    assert books.rows == slots + 4
    traffic = Traffic(books, seed)
    for _ in range(50):
        traffic.play(20, at_a_time=4)
        traffic.books.check()
        if traffic.draw.random() < 0.3:
            traffic.evict(slots)
            assert not books.parent, "everything can leave"


def play_and_check(traffic: Traffic) -> None:
    for _ in range(40):
        traffic.play(20, at_a_time=4)
        traffic.books.check()
    assert traffic.books.next > 500


class Watched(Books):
    """Looks at all visits to say which may lose blocks next."""

    choices = 0
    given_up: list[Visit]
    """Those that run, but were not active for long when the eviction began."""

    def evict(self, count: int) -> list[int]:
        there = self.there(self.parent)
        self.given_up = [visit for visit in there if visit.running and visit.born <= self.now - self.patience]
        return super().evict(count)

    def there(self, cached: dict[int, int]) -> list[Visit]:
        """Return the visits whose last block may leave."""
        leaves = {slot for slot in cached if not self.pins[slot]} - set(cached.values())
        return [visit for visit in self.visits.values() if visit.slots and visit.slots[-1] in leaves]

    def choose(self, visit: Visit, cached: dict[int, int]) -> None:
        there = self.there(cached)
        waiting = [other for other in there if not other.running or other in self.given_up]
        if not waiting:
            assert visit.born == min(other.born for other in there), "of those that run the first has to leave"
            return
        self.choices += 1
        worths = {kind: self.worst(kind, waiting, cached) for kind in {other.kind for other in waiting}}
        assert visit in waiting, "it runs, and there are others"
        assert worths[visit.kind] == (min(worth for worth, _ in worths.values()), visit.born)

    def worst(self, kind: int, waiting: list[Visit], cached: dict[int, int]) -> tuple[float, int]:
        """Return the value and the birth of the one that leaves first of a kind."""
        by_age = sorted((visit for visit in waiting if visit.kind == kind), key=lambda visit: visit.born)
        oldest, youngest = ((self.worth(visit, cached), visit.born) for visit in (by_age[0], by_age[-1]))
        at_birth = self.forecast._holders.index.value_at_birth(kind)
        return youngest if at_birth < oldest[0] and youngest[0] < oldest[0] else oldest

    def worth(self, visit: Visit, cached: dict[int, int]) -> float:
        """The value of a visit; of the last block of a prompt not more than that of the block before it."""
        there = [visit]
        if visit.kind in (LAST_BLOCK, LAST_BLOCK_LATER):
            there.append(self.holder[cached[visit.slots[0]]])
        return min(self.forecast._holders.index.value(each.kind, self.now - each.born) for each in there)


@pytest.mark.parametrize("more_visits", [40, holders.VISITS_MORE])
@pytest.mark.parametrize(("slots", "seed"), [(8, 0), (16, 1), (24, 2), (40, 3), (48, 0), (48, 4), (63, 5)])
def test_who_leaves_is_worth_least_of_all(
    slots: int, seed: int, more_visits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one request at a time; the values of a pool this small are computed anew with each block."""
    monkeypatch.setattr(holders, "VISITS_MORE", more_visits)
    books = Watched(slots)
    Traffic(books, seed).play(1000, at_a_time=1)
    books.check()
    assert books.choices > 100


def test_after_clear_it_begins_anew() -> None:
    books = Watched(24)
    for seed in range(4):
        Traffic(books, seed).play(300, at_a_time=1)
        books.check()
        clear(books)
        books.begin_anew()
    assert books.evict(24) == []
