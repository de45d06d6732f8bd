"""Where hardly anything packs it is not tried again and again, and where blocks pack again that is noticed."""

from __future__ import annotations

from kvtide.copy.packing.habit import Habit


def tried(habit: Habit, stores: int = 32) -> int:
    return sum(habit.is_worth_trying() for _ in range(stores))


def test_it_is_tried_as_long_as_half_of_the_blocks_pack() -> None:
    habit = Habit()
    assert tried(habit) == 32
    for _ in range(4):
        habit.seen(40, unfit=20)
    assert tried(habit) == 32


def test_it_is_given_up_when_most_of_64_blocks_do_not_pack_save_one_store_in_16() -> None:
    habit = Habit()
    habit.seen(63, unfit=63)
    assert tried(habit) == 32, "too few to tell"
    habit.seen(1, unfit=0)
    assert tried(habit) == 2


def test_blocks_that_pack_after_all_are_noticed() -> None:
    habit = Habit()
    habit.seen(64, unfit=64)
    habit.seen(60, unfit=0)
    assert tried(habit) == 2
    habit.seen(4, unfit=4)
    assert tried(habit) == 32
