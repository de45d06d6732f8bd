"""Numbers as people read them."""

from __future__ import annotations

import pytest

from kvtide.units import percent_text, seconds_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (3 << 29, "1.5 GiB"),
        (256 << 30, "256 GiB"),
        (5 << 60, "5120 PiB"),
    ],
)
def test_a_size_is_told_in_the_largest_unit_that_it_has_one_of(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0351, "35.1 ms"),
        (1.2, "1.2 s"),
        (119, "119 s"),
        (1080, "18 min"),
        (7199, "120 min"),
        (19800, "5.5 h"),
        (172_800, "2.0 days"),
        (90_000_000, "1,041.7 days"),
    ],
)
def test_a_time_is_told_in_the_unit_that_people_count_it_in(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_share_is_told_in_percent() -> None:
    assert percent_text(0.3141) == "31.4%"
