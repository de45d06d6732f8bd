"""Visits: a ring of rows, each as new when it is used again."""

from __future__ import annotations

from kvtide.core.eviction.forecast.visits import NOTHING, Visits

SIZE = 5
NUMBERS = ("cached", "gone", "known", "fresh", "soon", "running", "grew")


def test_visits_are_numbered_from_0_on_and_begin_without_blocks() -> None:
    visits = Visits(SIZE)
    for number in range(3 * SIZE):
        assert visits.open(now=100 + number, kind=number % 3, turn=number) == number
        row = number % SIZE
        assert (visits.born[row], visits.kind[row], visits.turn[row]) == (100 + number, number % 3, number)
        assert (visits.tip[row], visits.trace[row]) == (NOTHING, None)
        assert [getattr(visits, name)[row] for name in NUMBERS] == [0] * len(NUMBERS)
        for name in NUMBERS:  # what it leaves behind when the ring comes round
            getattr(visits, name)[row] = 1
        visits.tip[row], visits.trace[row] = 7, b"key"
    assert visits.next == 3 * SIZE


def test_turns_are_counted_up_to_255() -> None:
    visits = Visits(SIZE)
    assert [visits.turn[visits.open(0, 0, turn)] for turn in (254, 255, 256)] == [254, 255, 255]


def test_there_is_one_row_for_each_visit_and_no_more() -> None:
    visits = Visits(SIZE)
    for name in (*NUMBERS, "born", "tip", "kind", "turn", "queue", "trace"):
        assert len(getattr(visits, name)) == SIZE
