from __future__ import annotations

from collections import Counter

from kvtide.sim.draw import CHANCE_ONE, Draw


def test_a_stream_can_be_repeated_and_two_streams_differ() -> None:
    def first_ten(stream: int) -> list[int]:
        draw = Draw(42, stream)
        return [draw.below(1000) for _ in range(10)]

    assert first_ten(0) == first_ten(0)
    assert first_ten(0) != first_ten(1)


def test_numbers_are_the_same_on_every_python_that_will_ever_be() -> None:
    draw = Draw(1, 0)
    drawn = [draw.below(100), draw.between(5, 9), draw.pick("abc"), draw.chance(128), draw.skewed(0, 50)]
    assert drawn == [22, 6, "c", True, 1]


def test_all_numbers_between_two_limits_come_and_no_others() -> None:
    draw = Draw(0, 0)
    assert {draw.between(3, 6) for _ in range(200)} == {3, 4, 5, 6}
    assert {draw.below(3) for _ in range(200)} == {0, 1, 2}


def test_chances_are_what_they_say() -> None:
    draw = Draw(0, 0)
    assert not any(draw.chance(0) for _ in range(100))
    assert all(draw.chance(CHANCE_ONE) for _ in range(100))
    assert 400 < sum(draw.chance(CHANCE_ONE // 2) for _ in range(1000)) < 600


def test_skewed_numbers_are_mostly_small() -> None:
    draw = Draw(0, 0)
    counts = Counter(draw.skewed(0, 9) for _ in range(2000))
    assert set(counts) <= set(range(10))
    assert counts[0] > 3 * counts[6]
